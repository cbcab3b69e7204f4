import { rootEntryPath } from "../abi/path.js"
import { CtxCommand } from "../client/command.js"
import { writeRaw } from "../client/output.js"

/** `ctx env`: the resolved variables as POSIX shell text. Implements ctx-coreutils 2.2, 3. */
export default class Env extends CtxCommand {
  static override summary = "Print the environment of the tree for a shell"
  static override description =
    "POSIX text that exports CTX_ROOT, CTX_HOME and CTX_PATH and puts the bin directory of the tree into PATH once. Needs no mount."
  static override examples = ['eval "$(<%= config.bin %> env)"', "<%= config.bin %> env --json"]

  async run(): Promise<unknown> {
    await this.parse(Env)
    const { root, home, path } = this.places
    const bin = rootEntryPath("bin", root)
    const lines = [
      `export CTX_ROOT=${quote(root)}`,
      `export CTX_HOME=${quote(home)}`,
      `export CTX_PATH=${quote(path)}`,
      `case ":$PATH:" in *${quote(`:${bin}:`)}*) ;; *) export PATH=${quote(bin)}:"$PATH" ;; esac`,
    ]
    if (!this.jsonEnabled()) await writeRaw(`${lines.join("\n")}\n`)
    return { CTX_ROOT: root, CTX_HOME: home, CTX_PATH: path }
  }
}

function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`
}
