import { string } from "@oclif/core/args"
import { CtxError } from "../../abi/error.js"
import { CtxCommand } from "../../client/command.js"
import { escapeBytes, escapeText } from "../../client/escape.js"
import { defaultStorage } from "../../store/census.js"
import { checkStorage } from "../../store/fsck.js"
import { validateStoragePath } from "../../store/root.js"

/** `ctx storage verify`: a read-only check of a storage. Implements ctx-coreutils "Further commands". */
export default class StorageVerify extends CtxCommand {
  static override summary = "Check the stored tree: nodes, links, modes, owners, state files"
  static override description =
    "Prints ok, or one line bad PATH REASON for each fault and exits 1. The selected generation is held to this release byte for byte, what people may edit aside. PATH is an absolute directory called storage; without it the caller's own. Changes nothing, follows no link, opens nothing outside of it. Leftovers of a killed update are no fault."
  static override examples = [
    "<%= config.bin %> storage verify",
    "<%= config.bin %> storage verify /srv/cortexfs/storage --json",
  ]
  static override args = { path: string({ description: "storage directory" }) }

  async run(): Promise<unknown> {
    const { args } = await this.parse(StorageVerify)
    const storage = validateStoragePath(args.path ?? defaultStorage())
    const faults = checkStorage(storage)
    if (faults.length === 0) return [await this.action("ok", "ok", { path: storage })]
    const actions: unknown[] = []
    for (const { path, reason } of faults) {
      const shown = escapeBytes(path)
      actions.push(await this.action(`bad ${shown} ${escapeText(reason)}`, "bad", { path: shown, reason }))
    }
    const count = faults.length === 1 ? "one fault" : `${faults.length} faults`
    this.report(
      new CtxError("EIO", `${storage} has ${count}`, { hint: "mend what is named, then run ctx storage update" }),
    )
    return actions
  }
}
