import { CtxCommand } from "../client/command.js"
import { writeRaw } from "../client/output.js"

/** `ctx root`: the resolved CTX_ROOT. Implements ctx-coreutils 3. */
export default class Root extends CtxCommand {
  static override summary = "Print the root of the tree: CTX_ROOT, else /ctx or the caller's own"
  static override description = "Needs no mount. With --json an object with the key CTX_ROOT."
  static override examples = ["<%= config.bin %> root", 'ls "$(<%= config.bin %> root)/agent"']

  async run(): Promise<unknown> {
    await this.parse(Root)
    if (!this.jsonEnabled()) await writeRaw(`${this.places.root}\n`)
    return { CTX_ROOT: this.places.root }
  }
}
