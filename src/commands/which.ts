import { accessSync, constants, lstatSync, readlinkSync } from "node:fs"
import { string } from "@oclif/core/args"
import { CtxError } from "../abi/error.js"
import { isAlias, isModel, validateName } from "../abi/name.js"
import { agentPath, aliasPath, modelPath } from "../abi/path.js"
import { CtxCommand } from "../client/command.js"
import { join, type Places } from "../client/place.js"

/** `ctx which CLASS NAME`: where an object is. Implements ctx-coreutils 3, root-abi 7. */
export default class Which extends CtxCommand {
  static override summary = "Print the absolute path of a model, agent or tool"
  static override description =
    "A tool is looked up in CTX_PATH: the first entry that is an executable plain file wins. Models and agents lie in their class directory. With --json class, name, path and target, the text of an alias."
  static override examples = [
    "<%= config.bin %> which tool fs.read",
    "<%= config.bin %> which agent coder",
    "<%= config.bin %> which model main --json",
  ]
  static override args = {
    class: string({ description: "kind of object", required: true, options: ["model", "agent", "tool"] }),
    name: string({ description: "NAME, for models also PROVIDER/MODEL", required: true }),
  }

  async run(): Promise<unknown> {
    const { args } = await this.parse(Which)
    const places = this.mountedPlaces()
    const path = findObject(places, args.class, args.name)
    if (path === undefined) {
      throw new CtxError("ENOENT", `${args.class}/${args.name}`, { hint: `run ctx ls ${args.class}` })
    }
    await this.text(`${path}\n`)
    const target = args.class === "model" && isAlias(args.name) ? readlinkSync(path) : null
    return { class: args.class, name: args.name, path, target }
  }
}

function findObject(places: Places, kind: string, name: string): string | undefined {
  if (kind === "tool") return findTool(places, validateName(name))
  const path = kind === "agent" ? agentPath(name, places.root) : findModelPath(places, name)
  const stat = lstatSync(path, { throwIfNoEntry: false })
  return stat?.isFile() || stat?.isSymbolicLink() ? path : undefined
}

function findModelPath(places: Places, name: string): string {
  if (isAlias(name)) return aliasPath(name, places.root)
  if (isModel(name)) return modelPath(name, undefined, places.root)
  throw new CtxError("EINVAL", `bad model name ${name}`, { hint: "give an alias such as main, or PROVIDER/MODEL" })
}

function findTool(places: Places, name: string): string | undefined {
  for (const dir of places.path.split(":")) {
    if (!dir.startsWith("/")) continue
    const path = join(dir, name)
    try {
      if (!lstatSync(path).isFile()) continue
      accessSync(path, constants.X_OK)
      return path
    } catch {
      // Not there or not for us: the next directory may have it.
    }
  }
  return undefined
}
