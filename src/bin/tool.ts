// cortexfs-tool: the reference tools. The kernel starts it as the interpreter of a tool's file, with the tool's name,
// the path of that file, and the arguments of the call (tool-policy-abi 3, 5).
import { readSync, writeSync } from "node:fs"
import { isErrnoName } from "../abi/errno.js"
import { CtxError, codeOf } from "../abi/error.js"
import { formatRow, isObject, type JsonObject, parseJsonObject } from "../abi/json.js"
import { CALL_ARGUMENTS_MAX, INPUT_DEPTH_MAX } from "../abi/limit.js"
import { PATH_MAX } from "../abi/name.js"
import { escapeBytes } from "../client/escape.js"
import { isReferenceTool, parseArgs, usageOf } from "../tool/form.js"
import { listDirectory } from "../tool/list.js"
import { readLines } from "../tool/read.js"

/** Members an input may have: type, bounds and default, as in the tool's schema. */
type Members = Record<
  string,
  | { type: "path"; absent?: string }
  | { type: "number"; absent: number; max: number }
  | { type: "boolean"; absent: boolean }
>

const MEMBERS: Readonly<Record<string, Members>> = {
  "fs.read": {
    path: { type: "path" },
    line: { type: "number", absent: 1, max: Number.MAX_SAFE_INTEGER },
    lines: { type: "number", absent: 2000, max: 5000 },
  },
  "fs.list": {
    path: { type: "path", absent: "." },
    depth: { type: "number", absent: 1, max: 8 },
    hidden: { type: "boolean", absent: false },
    limit: { type: "number", absent: 500, max: 5000 },
  },
}

function checkPath(value: unknown): string {
  if (typeof value !== "string" || value === "" || value.includes("\0")) {
    throw new CtxError("EINVAL", "path is not a text without NUL")
  }
  if (Buffer.byteLength(value) > PATH_MAX) throw new CtxError("ENAMETOOLONG", `path of more than ${PATH_MAX} bytes`)
  return value
}

/** The input with its defaults. A terminal hands over what no host has validated. Errors: EINVAL, ENAMETOOLONG. */
function checkInput(tool: string, input: JsonObject): JsonObject {
  const members = MEMBERS[tool]!
  const checked: JsonObject = {}
  for (const key of Object.keys(input)) {
    if (!Object.hasOwn(members, key)) throw new CtxError("EINVAL", `unknown member ${JSON.stringify(key.slice(0, 80))}`)
  }
  for (const [key, member] of Object.entries(members)) {
    const value = Object.hasOwn(input, key) ? input[key] : member.absent
    if (member.type === "path") checked[key] = checkPath(value)
    else if (member.type === "boolean" ? typeof value === "boolean" : isWithin(value, member.max)) checked[key] = value
    else throw new CtxError("EINVAL", `${key} is not a ${member.type} within its bounds`)
  }
  return checked
}

function isWithin(value: unknown, max: number): boolean {
  return Number.isInteger(value) && (value as number) >= 1 && (value as number) <= max
}

function runTool(tool: string, input: JsonObject): string {
  const checked = checkInput(tool, input) as never
  return tool === "fs.read" ? readLines(checked) : listDirectory(checked, escapeBytes)
}

function readStdin(max: number): Buffer {
  const bytes = Buffer.allocUnsafe(max + 1)
  let size = 0
  for (;;) {
    const got = readSync(0, bytes, size, bytes.length - size, null)
    if (got === 0) return bytes.subarray(0, size)
    size += got
    if (size > max) throw new CtxError("EINVAL", `input of more than ${max} bytes`)
  }
}

function write(fd: number, text: string): void {
  const bytes = Buffer.from(text)
  for (let offset = 0; offset < bytes.length; ) offset += writeSync(fd, bytes, offset)
}

function describe(e: unknown, input: JsonObject): { code: string; message: string } {
  const code = codeOf(e)
  if (e instanceof CtxError && isErrnoName(code)) return { code, message: e.message }
  const path = isObject(input) && typeof input.path === "string" ? input.path : "."
  return isErrnoName(code) ? { code, message: path } : { code: "EIO", message: path }
}

/** Exit code of a tool for an errno name (tool-policy-abi 5.2). */
function exitOf(code: string): number {
  if (code === "EINVAL") return 2
  if (code === "EACCES" || code === "EPERM") return 13
  return code === "EHOSTDOWN" ? 69 : 1
}

/** One call in a run: JSON input on stdin, frames on stdout. */
function runNative(tool: string): number {
  const run = process.env.CTX_RUN_ID
  if (!run) throw new CtxError("EINVAL", "CTX_RUN_ID is not set")
  const print = (frame: object) => write(1, `${formatRow(frame)}\n`)
  print({ type: "start", run, object: `tool/${tool}` })
  let input: JsonObject = {}
  try {
    input = parseJsonObject(readStdin(CALL_ARGUMENTS_MAX + 1), INPUT_DEPTH_MAX)
    const text = runTool(tool, input)
    print({ type: "message", run, role: "tool", content: [{ type: "text", text }] })
    print({ type: "done", run, status: "ok" })
    return 0
  } catch (e) {
    const { code, message } = describe(e, input)
    print({ type: "error", run, code, message })
    print({ type: "done", run, status: "error" })
    return exitOf(code)
  }
}

/** One call from a terminal: arguments, text on stdout. */
function runCli(tool: string, args: string[]): number {
  if (args.length === 0 && process.stdin.isTTY) {
    write(1, `${usageOf(tool)}\n`)
    return 2
  }
  let input: JsonObject = {}
  try {
    input = parseArgs(tool, args)
    write(1, runTool(tool, input))
    return 0
  } catch (e) {
    const { code, message } = describe(e, input)
    write(2, `${tool}: ${code}: ${message}\n`)
    return exitOf(code)
  }
}

function main([tool = "", , ...args]: string[]): number {
  if (!isReferenceTool(tool)) {
    write(2, `cortexfs-tool: EINVAL: ${JSON.stringify(tool)} is no reference tool\n`)
    return 2
  }
  try {
    return process.env.CTX_TOOL_MODE === "native" ? runNative(tool) : runCli(tool, args)
  } catch (e) {
    // Nobody reads the result any more, or there was nothing to answer.
    if (codeOf(e) === "EPIPE") return 0
    write(2, `${tool}: ${codeOf(e) ?? "EIO"}: ${e instanceof Error ? e.message : "cannot go on"}\n`)
    return exitOf(codeOf(e) ?? "EIO")
  }
}

process.exitCode = main(process.argv.slice(2))
