// Receipts of an agent's launches in its meta.json (agent-runtime.md 16): the only thing a stop may act on.
import { type BigIntStats, closeSync, constants, fstatSync, openSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import { isObject, type JsonObject, parseJsonObject } from "../abi/json.js"
import { CONTROL_MAX } from "../abi/limit.js"
import { isSessionName } from "../abi/name.js"
import { readFileNofollow, replaceFile } from "./file.js"

/** Name of the control that holds the receipt. */
export const META_FILE = "meta.json"
const KEY = "runtime_receipt"
const VERSION = 1

/** Which directory a control directory was at the launch. */
export interface ControlIdentity {
  dev: bigint
  ino: bigint
}

/** A unit of the service manager as it was started. `isOwnedStart` is false for one that was up before: it is left alone. */
export interface UnitReceipt {
  unit: string
  /** 32 lower-case hex digits */
  invocation: string
  isOwnedStart: boolean
}

/** A terminal's unit, run by the user's service manager. */
export interface TerminalReceipt {
  session: string
  unit: string
  invocation: string
  pid: number
  identity: { uid: number; gid: number; groups: number[] }
}

/** What the latest launch of an agent left. A runtime outside of a service manager has neither unit. */
export interface Receipt {
  control: ControlIdentity
  terminal?: TerminalReceipt
  system?: UnitReceipt
}

function refuse(why: string): never {
  throw new CtxError("EINVAL", `${META_FILE}: ${KEY} ${why}`, { path: META_FILE })
}

/** An object with exactly the keys `keys` and any of `optional`. */
function readObject(value: unknown, what: string, keys: string[], optional: string[] = []): JsonObject {
  if (!isObject(value)) return refuse(`has a ${what} that is no object`)
  const found = Object.keys(value)
  const isExact = keys.every(key => found.includes(key)) && found.every(key => [...keys, ...optional].includes(key))
  return isExact ? value : refuse(`has a ${what} with the keys ${found.join(" ") || "none"}`)
}

/** Numbers that a double cannot hold are written as decimal text. */
function readBig(value: unknown, what: string): bigint {
  if (typeof value === "number" && Number.isSafeInteger(value) && value >= 0) return BigInt(value)
  if (typeof value === "string" && /^[1-9][0-9]{15,19}$/.test(value)) return BigInt(value)
  return refuse(`has a bad ${what}`)
}

function formatBig(value: bigint): number | string {
  return value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : value.toString()
}

function readNumber(value: unknown, what: string): number {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0 ? value : refuse(`has a bad ${what}`)
}

function readText(value: unknown, what: string, form: RegExp): string {
  return typeof value === "string" && form.test(value) ? value : refuse(`has a bad ${what}`)
}

const UNIT = /^[A-Za-z0-9:_.\\@-]{1,255}$/
const INVOCATION = /^[0-9a-f]{32}$/

function readSystem(value: unknown): UnitReceipt {
  const system = readObject(value, "system", ["unit", "invocation", "owned_start"])
  if (typeof system.owned_start !== "boolean") return refuse("has a bad owned_start")
  return {
    unit: readText(system.unit, "unit", UNIT),
    invocation: readText(system.invocation, "invocation", INVOCATION),
    isOwnedStart: system.owned_start,
  }
}

function readTerminal(value: unknown): TerminalReceipt {
  const terminal = readObject(value, "terminal", ["session", "unit", "invocation", "pid", "identity"])
  const identity = readObject(terminal.identity, "identity", ["uid", "gid", "groups"])
  if (typeof terminal.session !== "string" || !isSessionName(terminal.session)) return refuse("has a bad session")
  if (!Array.isArray(identity.groups)) return refuse("has bad groups")
  return {
    session: terminal.session,
    unit: readText(terminal.unit, "unit", UNIT),
    invocation: readText(terminal.invocation, "invocation", INVOCATION),
    pid: readNumber(terminal.pid, "pid"),
    identity: {
      uid: readNumber(identity.uid, "uid"),
      gid: readNumber(identity.gid, "gid"),
      groups: identity.groups.map(group => readNumber(group, "group")),
    },
  }
}

/**
 * The receipt in the bytes of a `meta.json`; undefined when it has none. Errors: `EINVAL` for anything but the exact keys
 * of agent-runtime.md 16, and for a `meta.json` that is no JSON object.
 */
export function parseReceipt(meta: Buffer): Receipt | undefined {
  const value = parseJsonObject(meta)[KEY]
  if (value === undefined) return undefined
  const receipt = readObject(value, "value", ["version", "control"], ["terminal", "system"])
  if (receipt.version !== VERSION) return refuse(`has version ${JSON.stringify(receipt.version)}`)
  const control = readObject(receipt.control, "control", ["dev", "ino"])
  return {
    control: { dev: readBig(control.dev, "dev"), ino: readBig(control.ino, "ino") },
    terminal: receipt.terminal === undefined ? undefined : readTerminal(receipt.terminal),
    system: receipt.system === undefined ? undefined : readSystem(receipt.system),
  }
}

/** The bytes of a `meta.json` with this receipt in place of its own; every other key of `meta` is kept. Errors: `EINVAL`. */
export function formatReceipt(meta: Buffer, receipt: Receipt): Buffer {
  const { control, terminal, system } = receipt
  const value = {
    version: VERSION,
    control: { dev: formatBig(control.dev), ino: formatBig(control.ino) },
    terminal,
    system: system && { unit: system.unit, invocation: system.invocation, owned_start: system.isOwnedStart },
  }
  const data = Buffer.from(`${JSON.stringify({ ...parseJsonObject(meta), [KEY]: value })}\n`)
  return data.length <= CONTROL_MAX ? data : refuse(`has no room below ${CONTROL_MAX} bytes`)
}

/** Whether a receipt was made for exactly this control directory. */
export function provesControl({ control }: Receipt, dir: ControlIdentity): boolean {
  return control.dev === dir.dev && control.ino === dir.ino
}

/**
 * The receipt in an open control directory of the backing tree. Errors: `EINVAL` when it is malformed or no plain file,
 * errno of reading.
 */
export function findReceipt(controlFd: number): Receipt | undefined {
  const meta = readMeta(controlFd)
  return meta && parseReceipt(meta)
}

function readMeta(controlFd: number): Buffer | undefined {
  try {
    return readFileNofollow({ dirFd: controlFd, name: META_FILE }, CONTROL_MAX)
  } catch (cause) {
    const code = codeOf(cause)
    if (code === "ENOENT") return undefined
    if (["ELOOP", "EISDIR", "EFBIG"].includes(code ?? "")) {
      throw new CtxError("EINVAL", `${META_FILE} is no plain file of at most ${CONTROL_MAX} bytes`, { cause })
    }
    throw cause
  }
}

/** The receipt of an earlier launch, when it can be read and is of this directory. */
function findValid(meta: Buffer, dir: ControlIdentity): Receipt | undefined {
  try {
    const receipt = parseReceipt(meta)
    return receipt && provesControl(receipt, dir) ? receipt : undefined
  } catch (error) {
    if (codeOf(error) === "EINVAL") return undefined
    throw error
  }
}

/**
 * Issues the receipt of a runtime that starts, in one step: bound to the control directory as it is now, with the unit
 * that runs it, if one does. A terminal that an earlier receipt of this directory names stays in it, other keys of
 * `meta.json` too. Errors: `EINVAL` when `meta.json` is no JSON object, then it is left as it is; errno of writing.
 */
export function issueReceipt(controlDir: string, system: UnitReceipt | undefined): void {
  const controlFd = openSync(controlDir, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW)
  try {
    const { dev, ino } = fstatSync(controlFd, { bigint: true })
    const meta = readMeta(controlFd) ?? Buffer.from("{}")
    const terminal = findValid(meta, { dev, ino })?.terminal
    const data = formatReceipt(meta, { control: { dev, ino }, terminal, system })
    // Durable, since other keys of the file are not the runtime's to lose.
    replaceFile(`/proc/self/fd/${controlFd}/./${META_FILE}`, data, { mode: 0o644, isDurable: true })
  } finally {
    closeSync(controlFd)
  }
}

/**
 * The bytes of a cloned `meta.json`: a receipt that verifies in the directory `from` is re-issued for `to`. Undefined
 * when the file is to be carried as it is (rolling-upgrades.md 7.2).
 */
export function reissueReceipt(meta: Buffer, from: BigIntStats, to: BigIntStats): Buffer | undefined {
  const receipt = findValid(meta, from)
  return receipt && formatReceipt(meta, { ...receipt, control: { dev: to.dev, ino: to.ino } })
}
