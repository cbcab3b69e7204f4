import { readFileSync } from "node:fs"
import { parsePairs } from "../abi/control.js"
import { rootEntryPath } from "../abi/path.js"
import { CtxCommand } from "../client/command.js"
import { writeRaw } from "../client/output.js"

/** `ctx status`: the bytes of `$CTX_ROOT/status`. Implements ctx-coreutils 3, root-abi 4.1. */
export default class Status extends CtxCommand {
  static override summary = "Print the state of the mount"
  static override description =
    "The bytes of the file status at the root of the tree. With --json its pairs, decimals as numbers."
  static override examples = ["<%= config.bin %> status", "<%= config.bin %> status --json"]

  async run(): Promise<unknown> {
    await this.parse(Status)
    const bytes = readFileSync(rootEntryPath("status", this.mountedPlaces().root))
    if (!this.jsonEnabled()) return writeRaw(bytes)
    return Object.fromEntries([...parsePairs(bytes, "status")].map(([key, value]) => [key, jsonValue(value)]))
  }
}

function jsonValue(value: string): string | number | null {
  if (value === "-") return null
  return /^(0|[1-9]\d{0,15})$/.test(value) ? Number(value) : value
}
