import { string } from "@oclif/core/args"
import { validateName } from "../abi/name.js"
import { CtxCommand } from "../client/command.js"

/** `ctx validate NAME`: the NAME grammar of root-abi 2. Implements ctx-coreutils 3. */
export default class Validate extends CtxCommand {
  static override summary = "Check that a word is a NAME"
  static override description =
    "A NAME has 1 to 64 bytes of letters, digits, dot, underscore, plus and minus, begins with a letter or digit, and does not end in .sock or .d. A valid one prints nothing, an invalid one is EINVAL. Put -- before a word that begins with a minus."
  static override examples = ["<%= config.bin %> validate fs.read", "<%= config.bin %> validate-name -- -x"]
  static override aliases = ["validate-name"]
  static override args = { name: string({ description: "word to check", required: true }) }

  async run(): Promise<unknown> {
    const { args } = await this.parse(Validate)
    validateName(args.name)
    return { name: args.name }
  }
}
