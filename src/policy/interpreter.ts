// The policy interpreter of the host: may only tighten what policy v0 allows (`tool-policy-abi.md` 8).
import { constants } from "node:fs"
import { type FileHandle, open } from "node:fs/promises"
import { pathToFileURL } from "node:url"
import { CtxError, codeOf } from "../abi/error.js"
import { isObject, parseJson } from "../abi/json.js"
import { CONTROL_MAX, INTERPRETER_TIMEOUT_MS } from "../abi/limit.js"
import { isCleanPath } from "../abi/name.js"
import { interpreterConfigPath } from "../abi/path.js"
import { DENIED, type Decision } from "./decision.js"
import type { PolicyClass } from "./policy.js"

/** What an interpreter is asked about; keys as the module sees them. */
export interface PolicyRequest {
  subject: string
  class: PolicyClass
  object: string
  permission: string
  agent: string
  uid: number
  session: string
  run: string
}

/** Asks the host's interpreter. */
export interface Interpreter {
  /** True unless the host has an interpreter and it did not answer `allow` within 100 ms. Never throws. */
  isAllowed(request: PolicyRequest): Promise<boolean>
}

const ALLOW_ALL: Interpreter = { isAllowed: async () => true }
const DENY_ALL: Interpreter = { isAllowed: async () => false }
const ASKED: readonly PolicyClass[] = ["tool", "model", "shared", "agent", "network"]

type Decide = (request: PolicyRequest) => unknown

async function openSafe(path: string, owner: number): Promise<FileHandle> {
  const file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK)
  const stat = await file.stat()
  if (stat.isFile() && stat.uid === owner && (stat.mode & 0o022) === 0) return file
  await file.close()
  throw new CtxError("EACCES", "must be a plain file of its owner, not writable for others", { path })
}

async function readConfig(path: string, owner: number): Promise<string> {
  const file = await openSafe(path, owner)
  try {
    if ((await file.stat()).size > CONTROL_MAX)
      throw new CtxError("EINVAL", `has more than ${CONTROL_MAX} bytes`, { path })
    const config = parseJson(await file.readFile())
    if (!isObject(config) || Object.keys(config).join() !== "module" || !isCleanPath(config.module)) {
      throw new CtxError("EINVAL", 'must be {"module":"/absolute/path.mjs"}', { path })
    }
    return config.module
  } finally {
    await file.close()
  }
}

async function importModule(path: string, owner: number): Promise<Decide> {
  await (await openSafe(path, owner)).close()
  const loaded: unknown = await import(pathToFileURL(path).href)
  const decide = (loaded as { decide?: unknown }).decide
  if (typeof decide !== "function") throw new CtxError("EINVAL", "module exports no function decide", { path })
  return decide as Decide
}

function ask(decide: Decide, request: PolicyRequest): Promise<boolean> {
  return new Promise(resolve => {
    const start = performance.now()
    const timer = setTimeout(() => resolve(false), INTERPRETER_TIMEOUT_MS)
    const settle = (answer: unknown) => {
      clearTimeout(timer)
      // A decide that blocks the thread is measured, since no timer can interrupt it.
      resolve(answer === "allow" && performance.now() - start <= INTERPRETER_TIMEOUT_MS)
    }
    try {
      Promise.resolve(decide({ ...request })).then(settle, () => settle(undefined))
    } catch {
      settle(undefined)
    }
  })
}

/**
 * Reads the host's interpreter once, at process start. Without `policy.json` in `configDir` everything is allowed; when the file is there
 * but it or its module is missing, unsafe (not of uid `owner`, writable for group or others, a link) or throws, everything is denied and
 * `onFault` is told why.
 */
export async function readInterpreter(
  configDir?: string,
  owner = 0,
  onFault: (e: unknown) => void = () => {},
): Promise<Interpreter> {
  const path = interpreterConfigPath(configDir)
  let module: string
  try {
    module = await readConfig(path, owner)
  } catch (e) {
    if (codeOf(e) === "ENOENT") return ALLOW_ALL
    onFault(e)
    return DENY_ALL
  }
  try {
    const decide = await importModule(module, owner)
    return { isAllowed: request => ask(decide, request) }
  } catch (e) {
    onFault(e)
    return DENY_ALL
  }
}

/**
 * A decision of policy v0 after the interpreter was asked: a denial stays one and is not asked about; `allow` stays only when the
 * interpreter says so. Classes without effect are not asked about.
 */
export async function tighten(decision: Decision, interpreter: Interpreter, request: PolicyRequest): Promise<Decision> {
  if (!decision.allow || !ASKED.includes(request.class)) return decision.allow ? DENIED : decision
  return (await interpreter.isAllowed(request)) ? decision : DENIED
}
