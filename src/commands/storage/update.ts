import { string } from "@oclif/core/args"
import { boolean, string as stringFlag } from "@oclif/core/flags"
import { codeOf } from "../../abi/error.js"
import { CtxCommand, failureContext } from "../../client/command.js"
import { escapeText } from "../../client/escape.js"
import { describeFailure, failureJson, formatFailure } from "../../client/failure.js"
import { writeErr } from "../../client/output.js"
import { formatPruneEntry, type PruneEntry } from "../../store/prune.js"
import { ensureDefaultStorage } from "../../store/root.js"
import { checkUpdateArguments, updateStorage } from "../../store/update.js"

/** `ctx storage update`: selects a valid generation. Implements rolling-upgrades 7, ctx-coreutils 5. */
export default class StorageUpdate extends CtxCommand {
  static override summary = "Select a valid generation of the stored tree, making one when needed"
  static override description =
    "Prints the path of the selected generation; with --prune then one line for each other entry. PATH is an absolute directory called storage; without it the caller's own. A generation that is in use is not replaced: stop its consumers first."
  static override examples = [
    "<%= config.bin %> storage update",
    "<%= config.bin %> storage update --prune --owner ann /srv/cortexfs/storage",
  ]
  static override args = { path: string({ description: "storage directory" }) }
  static override flags = {
    prune: boolean({ description: "remove generations that are neither selected nor in use" }),
    owner: stringFlag({ description: "uid or user name that new managed agents belong to", helpValue: "USER" }),
  }

  async run(): Promise<unknown> {
    const { args, flags } = await this.parse(StorageUpdate)
    const options = { prune: flags.prune, owner: flags.owner }
    const path = args.path ?? ensureDefaultStorage()
    checkUpdateArguments(path, options)
    try {
      const { entries, ...updated } = await updateStorage(path, options)
      await this.text([updated.path, ...entries.map(formatPruneEntry)].map(line => `${escapeText(line)}\n`).join(""))
      const { path: selected, generation, changed, treeVersion } = updated
      return { path: selected, generation, changed, tree_version: treeVersion, entries: entries.map(entryJson) }
    } catch (error) {
      return this.#fail(error)
    }
  }

  /** Every failure past the arguments but a refused permission and a broken invariant has one exit code here. */
  #fail(error: unknown): unknown {
    const failure = describeFailure(error, failureContext(this.ctor))
    const exit = ["EACCES", "EPERM", "internal"].includes(codeOf(error) ?? "") ? failure.exit : 69
    writeErr(formatFailure({ ...failure, exit }))
    process.exitCode = exit
    return failureJson({ ...failure, exit })
  }
}

function entryJson(entry: PruneEntry): { action: string; name: string; pids: number[] } {
  return { action: entry.action, name: entry.name, pids: "pids" in entry ? entry.pids : [] }
}
