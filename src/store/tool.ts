import { closeSync, constants, fstatSync, readdirSync } from "node:fs"
import { parseList, parseValue } from "../abi/control.js"
import { codeOf } from "../abi/error.js"
import { issueError, refuse } from "../abi/issue.js"
import { type JsonObject, parseJsonObject } from "../abi/json.js"
import { isName, validateName } from "../abi/name.js"
import { O_PATH, openat2 } from "../native/sys.js"
import { findControl } from "./control.js"
import { RESOLVE_STRICT } from "./file.js"

/** A directory with a `tool/` in it: a `Source`, a durable home or a space. */
export interface ToolPlace {
  dir: string
  dirFd: number
}

/** A tool object as it is in the backing tree now (tool-policy-abi.md 1). */
export interface Tool {
  name: string
  description: string
  /** JSON Schema of the input */
  schema: JsonObject
  cap: string[]
  /** bytes of `policy`; `undefined` when missing or unreadable, which denies everything */
  policy: Buffer | undefined
  timeoutS: number
  /** backing path of the program, and what is there: `undefined` when no executable is behind the tool */
  executable: string
  program: { uid: number; gid: number; mode: number; mtimeMs: number } | undefined
  controlDir: string
}

const CAPS = new Set(["text", "read", "write", "exec", "net", "agent", "raw", "mcp"])
const DESCRIPTION_MAX = 1024

function findToolControl(place: ToolPlace, name: string, control: string): Buffer | undefined {
  return findControl(place.dirFd, `tool/${name}.d/${control}`)
}

function getControl(place: ToolPlace, name: string, control: string): Buffer {
  const bytes = findToolControl(place, name, control)
  if (bytes === undefined) {
    throw issueError({ kind: "missing", what: `tool/${name}.d/${control}`, why: "is missing" })
  }
  return bytes
}

function readCap(place: ToolPlace, name: string): string[] {
  const what = `tool/${name}.d/cap`
  return parseList(getControl(place, name, "cap"), what).map((word, i) =>
    CAPS.has(word) ? word : refuse(what, `${word} is no capability word`, i + 1),
  )
}

function readTimeout(place: ToolPlace, name: string): number {
  const what = `tool/${name}.d/timeout`
  const bytes = findToolControl(place, name, "timeout")
  if (bytes === undefined) return 120
  const value = parseValue(bytes, what)
  return /^[1-9][0-9]{0,3}$/.test(value) && Number(value) <= 3600
    ? Number(value)
    : refuse(what, "is not a number of seconds from 1 to 3600", 1)
}

/** `policy` fails closed: what cannot be read denies everything. */
function readPolicy(place: ToolPlace, name: string): Buffer | undefined {
  try {
    return findToolControl(place, name, "policy")
  } catch {
    return undefined
  }
}

function findProgram(place: ToolPlace, name: string): Tool["program"] {
  let fd: number
  try {
    fd = openat2(place.dirFd, `tool/${name}`, O_PATH | constants.O_NOFOLLOW, 0, RESOLVE_STRICT)
  } catch (error) {
    if (codeOf(error) === "ENOENT") return undefined
    throw error
  }
  try {
    const stat = fstatSync(fd)
    if (!stat.isFile() || (stat.mode & 0o111) === 0) return undefined
    return { uid: stat.uid, gid: stat.gid, mode: stat.mode & 0o7777, mtimeMs: stat.mtimeMs }
  } finally {
    closeSync(fd)
  }
}

/**
 * Reads the tool `tool/<name>` of a place, anew for every call. Errors: `EINVAL` for a bad name or a malformed control,
 * `ENOENT` when a required control is missing. A tool without executable is given, with `program` undefined.
 */
export function readTool(place: ToolPlace, name: string): Tool {
  validateName(name)
  const what = (control: string) => `tool/${name}.d/${control}`
  if (parseValue(getControl(place, name, "name"), what("name")) !== name) refuse(what("name"), `is not ${name}`, 1)
  const description = parseValue(getControl(place, name, "description"), what("description"))
  if (Buffer.byteLength(description) > DESCRIPTION_MAX) refuse(what("description"), "has more than 1024 bytes", 1)
  let schema: JsonObject
  try {
    schema = parseJsonObject(getControl(place, name, "schema"))
  } catch (error) {
    if (codeOf(error) === "ENOENT") throw error
    return refuse(what("schema"), "is not a JSON object")
  }
  if (schema.type !== "object") refuse(what("schema"), "has not the type object")
  return {
    name,
    description,
    schema,
    cap: readCap(place, name),
    policy: readPolicy(place, name),
    timeoutS: readTimeout(place, name),
    executable: `${place.dir}/tool/${name}`,
    program: findProgram(place, name),
    controlDir: `${place.dir}/tool/${name}.d`,
  }
}

/** Names of the tools of a place that have a control directory, bytewise; empty when it has no `tool/`. */
export function listTools(place: ToolPlace): string[] {
  try {
    return readdirSync(`/proc/self/fd/${place.dirFd}/tool`, { withFileTypes: true })
      .filter(entry => entry.isDirectory() && entry.name.endsWith(".d") && isName(entry.name.slice(0, -2)))
      .map(entry => entry.name.slice(0, -2))
      .sort((a, b) => (a < b ? -1 : 1))
  } catch (error) {
    if (codeOf(error) === "ENOENT") return []
    throw error
  }
}
