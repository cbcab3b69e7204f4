import { ABI, TREE_VERSION, VERSION } from "../abi/product.js"
import { CtxCommand } from "../client/command.js"

/** `ctx abi`: the numbers of this program. Needs no mount. Implements ctx-coreutils 3. */
export default class Abi extends CtxCommand {
  static override summary = "Print the ABI number, tree version and version of this program"
  static override description = "Three key=value lines. Needs no mount: it speaks of this program, not of the tree."
  static override examples = ["<%= config.bin %> abi", "<%= config.bin %> abi --json"]

  async run(): Promise<unknown> {
    await this.parse(Abi)
    return this.pairs([
      ["abi", ABI],
      ["tree_version", TREE_VERSION],
      ["version", VERSION],
    ])
  }
}
