import { closeSync, constants } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import { isAlias, isModel, isModelReference } from "../abi/name.js"
import { AT_FDCWD, O_PATH, openat2, readlinkat } from "../native/sys.js"
import { RESOLVE_STRICT } from "./file.js"
import type { Source } from "./generation.js"
import { formatMetadata } from "./metadata.js"

/** The ten control files of a model (model-abi.md 2). */
export const MODEL_FILES = [
  "id",
  "driver",
  "cap",
  "effort",
  "default",
  "fallback",
  "limit",
  "session",
  "status",
  "log",
] as const

/** A model as it is shown and called. `controls` has the exact bytes of all ten files. */
export interface ModelObject {
  provider: string
  model: string
  controls: Record<(typeof MODEL_FILES)[number], string>
  /** what reading the executable gives (object-abi.md 2) */
  metadata: string
}

interface Reference {
  model: string
  description: string
  cap: string[]
  session: "none" | "socket"
}

/** Provider `debug` is built in (model-abi.md 10). */
const DEBUG: Reference[] = [
  { model: "echo", description: "Echo the last user text", cap: ["chat", "stream"], session: "socket" },
  {
    model: "guide",
    description: "Offline guide: reads named files, knows nothing else",
    cap: ["chat", "stream", "tool_call_syntax"],
    session: "none",
  },
  {
    model: "script",
    description: "Play a JSON script",
    cap: ["chat", "stream", "tool_call_syntax"],
    session: "none",
  },
]

function formatReference(reference: Reference): ModelObject {
  const id = `debug/${reference.model}`
  const cap = reference.session === "socket" ? [...reference.cap, "session"] : reference.cap
  return {
    provider: "debug",
    model: reference.model,
    controls: {
      id: `${id}\n`,
      driver: "debug\n",
      cap: cap.map(word => `${word}\n`).join(""),
      effort: "auto\n",
      default: "",
      fallback: "",
      limit: "unknown\n",
      session: `${reference.session}\n`,
      status: "ready\n",
      log: "",
    },
    metadata: formatMetadata("model", {
      id,
      name: reference.model,
      description: reference.description,
      created_at: "0",
      owned_by: "debug",
      context_length: "unknown",
    }),
  }
}

const MODELS = DEBUG.map(formatReference)

/** Every model of the host, bytewise by provider, then model (model-abi.md 2, 10). The list is the caller's own. */
export function listModels(_source: Source): ModelObject[] {
  return MODELS.map(model => ({ ...model, controls: { ...model.controls } }))
}

/** The model `provider/model`, `undefined` when there is none. */
export function findModel(source: Source, id: string): ModelObject | undefined {
  return listModels(source).find(model => `${model.provider}/${model.model}` === id)
}

/** The MODEL that an alias text names: `R/model/<provider>/<model>`, R any absolute root (root-abi.md 2.1). */
export function parseAliasTarget(text: string): string | undefined {
  const match = /^(?:\/.*)?\/model\/([^/]+\/[^/]+)$/.exec(text)
  return match?.[1] !== undefined && isModel(match[1]) ? match[1] : undefined
}

/**
 * The MODEL that the link `model/<alias>` below `dir` names; `undefined` when there is no such link.
 * Errors: `ENOENT` when something is there that is no alias text.
 */
function findAlias(dir: { dirFd: number; path: string }, alias: string): string | undefined {
  const path = `${dir.path}/${alias}`
  let text: string
  try {
    const flags = O_PATH | constants.O_DIRECTORY | constants.O_NOFOLLOW
    const fd = openat2(dir.dirFd, dir.path, flags, 0, RESOLVE_STRICT)
    try {
      text = readlinkat(fd, alias).toString()
    } finally {
      closeSync(fd)
    }
  } catch (error) {
    // Nothing there, or a home that this caller may not enter: the next tier decides.
    if (["ENOENT", "EACCES"].includes(codeOf(error) ?? "")) return undefined
    text = ""
  }
  const id = parseAliasTarget(text)
  if (id !== undefined) return id
  throw new CtxError("ENOENT", `${path}: the alias leads to no model`, { path, hint: "run ctx ls model" })
}

/** The MODEL an alias means for the agents of `owner`: `home/<owner>/model/` first, then `model/` (model-abi.md 2.1). */
function readAlias(source: Source, owner: number, alias: string): string {
  const rootFd = openat2(AT_FDCWD, source.dataRoot, O_PATH | constants.O_DIRECTORY | constants.O_NOFOLLOW)
  try {
    const own = findAlias({ dirFd: rootFd, path: `home/${owner}/model` }, alias)
    if (own !== undefined) return own
  } finally {
    closeSync(rootFd)
  }
  const shared = findAlias({ dirFd: source.dirFd, path: "model" }, alias)
  if (shared !== undefined) return shared
  throw new CtxError("ENOENT", `model/${alias}: no such alias`, { path: `model/${alias}`, hint: "run ctx ls model" })
}

/**
 * The model that a `model` control or a request means: an alias is looked up for `owner`, a MODEL stands for itself.
 * Errors: `EINVAL` when it is neither, `ENOENT` when no such model is there, also through a dangling alias.
 */
export function resolveModel(source: Source, owner: number, reference: string): string {
  if (!isModelReference(reference)) throw new CtxError("EINVAL", `${JSON.stringify(reference)} is no model or alias`)
  const id = isAlias(reference) ? readAlias(source, owner, reference) : reference
  if (findModel(source, id) !== undefined) return id
  throw new CtxError("ENOENT", `model/${id}: no such model`, { path: `model/${id}`, hint: "run ctx ls model" })
}
