// The logs of tools and models (agent-tool-security.md 14): one line for each call, never what was said in it.
import { closeSync, constants, fchmodSync, fstatSync, lstatSync, openSync, renameSync, writeSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import { formatRow } from "../abi/json.js"
import { MODEL_LOG_MAX } from "../abi/limit.js"
import { modelLogPath } from "../abi/path.js"
import { formatTs } from "../abi/time.js"
import type { Severity } from "../native/journal.js"
import { flock, openat2 } from "../native/sys.js"
import { RESOLVE_STRICT } from "../store/file.js"
import type { Source } from "../store/generation.js"
import { listTools, type ToolPlace } from "../store/tool.js"

const APPEND = constants.O_WRONLY | constants.O_APPEND | constants.O_NOFOLLOW | constants.O_NONBLOCK

/** A call as the log of its tool or model has it. */
export interface LoggedCall {
  session: string
  run: string
  status: "ok" | "error"
  /** Errno name of a refusal, or of how it failed. */
  code?: string
}

/** Gives the descriptor back when it is a plain file with one name, of the user who asks, so that no other file is meant. */
function checkLog(fd: number): number {
  const stat = fstatSync(fd)
  const isOwn = stat.uid === process.geteuid!()
  if (isOwn && stat.isFile() && stat.nlink === 1) return fd
  closeSync(fd)
  throw new CtxError(isOwn ? "EINVAL" : "EACCES", "a log is no plain file of its writer")
}

function openToolLog(place: ToolPlace, name: string): number {
  return checkLog(openat2(place.dirFd, `tool/${name}.d/log`, APPEND, 0, RESOLVE_STRICT))
}

/** Opens the log of models, and moves one that has grown too long out of the way before. */
function openModelLog(path: string): number {
  for (let tries = 0; ; tries++) {
    const fd = checkLog(openSync(path, APPEND | constants.O_CREAT, 0o644))
    try {
      const { size, dev, ino } = fstatSync(fd)
      fchmodSync(fd, 0o644)
      // Another runtime that starts now may have moved it already; a person who holds the lock only keeps it long.
      if (size <= MODEL_LOG_MAX || tries > 0 || !flock(fd, "ex")) return fd
      const named = lstatSync(path, { throwIfNoEntry: false })
      if (named?.dev === dev && named.ino === ino) renameSync(path, `${path}.1`)
    } catch (e) {
      closeSync(fd)
      throw e
    }
    closeSync(fd)
  }
}

/**
 * The logs a runtime writes. Those that are root's alone are opened before it becomes the agent's owner, and nothing but
 * these descriptors is left of that right. A log that cannot be opened or written is told once, and no call fails for it.
 */
export class Logs {
  private readonly tools = new Map<string, number>()
  private readonly model: number | undefined
  private isTold = false

  /** Opens the log of each system tool of `source` and that of models. Call it before the identity is dropped. units 2.6 */
  constructor(
    private readonly agent: string,
    source: Source,
    private readonly tell: (line: string, severity: Severity) => void,
  ) {
    for (const name of listTools(source)) {
      this.attempt(() => {
        this.tools.set(name, openToolLog(source, name))
      })
    }
    this.model = this.attempt(() => openModelLog(modelLogPath(source.dataRoot)))
  }

  /**
   * Opens the log of a tool that was found for a call, `isSystem` in the tree; gives what writes the line of that call and
   * ends it. Without a log it writes nothing.
   */
  openTool(place: ToolPlace, name: string, isSystem: boolean): (call: LoggedCall) => void {
    const own = isSystem ? undefined : this.attempt(() => openToolLog(place, name))
    const fd = own ?? (isSystem ? this.tools.get(name) : undefined)
    return ({ session, run, ...end }) => {
      this.append(fd, { type: "tool.call", agent: this.agent, session, object: `tool/${name}`, run, ...end })
      if (own !== undefined) closeSync(own)
    }
  }

  /** Writes the line of a model call. */
  appendModel(model: string, { session, run, ...end }: LoggedCall, elapsedMs: number): void {
    const facts = { type: "model.call", agent: this.agent, session, object: `model/${model}`, run, ...end }
    this.append(this.model, { ...facts, elapsed_ms: elapsedMs })
  }

  private append(fd: number | undefined, fields: Record<string, unknown>): void {
    if (fd === undefined) return
    this.attempt(() => writeSync(fd, `${formatRow({ ts: formatTs(), ...fields })}\n`))
  }

  private attempt<T>(work: () => T): T | undefined {
    try {
      return work()
    } catch (e) {
      const code = codeOf(e) ?? "EIO"
      // A tree without logs, or of somebody else, is served all the same.
      if (code !== "ENOENT" && code !== "EACCES" && !this.isTold) this.tell(`a log is not written: ${code}`, "warning")
      this.isTold ||= code !== "ENOENT" && code !== "EACCES"
      return undefined
    }
  }
}
