import { string } from "@oclif/core/args"
import { CtxCommand } from "../../client/command.js"
import { defaultStorage, listGenerations } from "../../store/census.js"
import { validateStoragePath } from "../../store/root.js"

/** `ctx storage list`: the generations of a storage. Implements ctx-coreutils "Further commands". */
export default class StorageList extends CtxCommand {
  static override summary = "List the generations of the stored tree"
  static override description =
    "GEN, TREE_VERSION, current or -, and the processes that hold it, joined by commas. PATH is an absolute directory called storage; without it the caller's own. Changes nothing."
  static override examples = [
    "<%= config.bin %> storage list",
    "<%= config.bin %> storage list /srv/cortexfs/storage --json",
  ]
  static override args = { path: string({ description: "storage directory" }) }

  async run(): Promise<unknown> {
    const { args } = await this.parse(StorageList)
    const generations = listGenerations(validateStoragePath(args.path ?? defaultStorage()))
    const rows = generations.map(one => [
      one.name,
      one.treeVersion,
      one.isCurrent ? "current" : null,
      one.pids.join(",") || null,
    ])
    return this.table(["gen", "tree_version", "current", "pids"], rows)
  }
}
