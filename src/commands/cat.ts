import { constants } from "node:fs"
import { type FileHandle, open } from "node:fs/promises"
import { string } from "@oclif/core/args"
import { CtxError, codeOf } from "../abi/error.js"
import { CtxCommand } from "../client/command.js"
import { writeRaw } from "../client/output.js"
import { absolutePath, checkMountedFor } from "../client/place.js"

const CHUNK_SIZE = 65536
const JSON_MAX = 64 * 1024 * 1024

/** `ctx cat PATH`: the bytes of a file. Implements ctx-coreutils 3. */
export default class Cat extends CtxCommand {
  static override summary = "Print the bytes of a file of the tree"
  static override description =
    "On a terminal control characters but LF and TAB are escaped. With --json path, bytes, encoding (utf8 or base64) and content, of at most 64 MiB."
  static override examples = [
    "<%= config.bin %> cat agent/coder.d/policy",
    "<%= config.bin %> cat tool/fs.read.d/schema --json",
  ]
  static override args = { path: string({ description: "path relative to CTX_ROOT, or absolute", required: true }) }

  async run(): Promise<unknown> {
    const { args } = await this.parse(Cat)
    const path = absolutePath(this.places, args.path)
    checkMountedFor(this.places, path)
    // Without O_NONBLOCK a FIFO in a space would hold the command for ever.
    const file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK).catch(error => {
      // A socket, or a device without a driver, cannot even be opened.
      throw codeOf(error) === "ENXIO" ? notPlain(path) : error
    })
    try {
      await checkPlain(file, path)
      if (!this.jsonEnabled()) {
        await copyOut(file)
        return undefined
      }
      return jsonFile(path, await readAll(file, path))
    } finally {
      await file.close()
    }
  }
}

async function checkPlain(file: FileHandle, path: string): Promise<void> {
  const stat = await file.stat()
  if (stat.isDirectory()) throw new CtxError("EISDIR", path, { path, hint: `ctx ls ${path}` })
  if (!stat.isFile()) throw notPlain(path)
}

function notPlain(path: string): CtxError {
  return new CtxError("EINVAL", `${path} is no plain file`, { path, hint: `ctx ls ${path} --json` })
}

// Sizes of generated files may be off: read until the end, not for a number of bytes.
async function* readChunks(file: FileHandle): AsyncGenerator<Buffer> {
  for (;;) {
    const { bytesRead, buffer } = await file.read(Buffer.allocUnsafe(CHUNK_SIZE), 0, CHUNK_SIZE, null)
    if (bytesRead === 0) return
    yield buffer.subarray(0, bytesRead)
  }
}

async function copyOut(file: FileHandle): Promise<void> {
  if (!process.stdout.isTTY) {
    for await (const chunk of readChunks(file)) await writeRaw(chunk)
    return
  }
  const decoder = new TextDecoder()
  for await (const chunk of readChunks(file)) await writeRaw(decoder.decode(chunk, { stream: true }))
  await writeRaw(decoder.decode())
}

async function readAll(file: FileHandle, path: string): Promise<Buffer> {
  const chunks: Buffer[] = []
  let size = 0
  for await (const chunk of readChunks(file)) {
    size += chunk.length
    if (size > JSON_MAX)
      throw new CtxError("EMSGSIZE", `${path} has more than 64 MiB`, { path, hint: "leave out --json" })
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}

function jsonFile(path: string, bytes: Buffer): object {
  const text = bytes.toString("utf8")
  const isText = Buffer.from(text).equals(bytes)
  const content = isText ? text : bytes.toString("base64")
  return { path, bytes: bytes.length, encoding: isText ? "utf8" : "base64", content }
}
