import { MODEL_ALIASES } from "../../abi/name.js"
import { modelPath } from "../../abi/path.js"
import type { ReferenceItem } from "../release.js"
import type { Entry, Setting } from "../tree.js"
import { executable } from "./executable.js"

const FIRST_MODEL = "debug/guide"

/** A directory of the fixed tree. */
export function fixedDir(setting: Setting): Entry {
  return { kind: "dir", mode: setting.dirMode, uid: setting.uid, gid: setting.gid }
}

/** A read-only file of the fixed tree. */
export function fixedFile(setting: Setting, text: string, mode = 0o444): Entry {
  return { kind: "file", data: Buffer.from(text), mode, uid: setting.uid, gid: setting.gid }
}

/** The directories of a reference tree (rolling-upgrades.md 3). */
export function skeletonItems(setting: Setting): ReferenceItem[] {
  const paths = ["bin", "model", "agent", "tool", "shared", "shared/cortexfs-docs"]
  return paths.map(path => ({ path, rule: "operator", entry: fixedDir(setting) }))
}

/** The model aliases; a new tree's lead to the offline guide (model-abi.md 2.1). */
export function aliasItems(setting: Setting, aliases: readonly string[] = MODEL_ALIASES): ReferenceItem[] {
  return aliases.map(alias => ({
    path: `model/${alias}`,
    rule: "operator",
    entry: { kind: "link", target: modelPath(FIRST_MODEL), uid: setting.uid, gid: setting.gid },
  }))
}

/** The programs in `bin/` (root-abi.md 4.2) that this release has. */
export function binItems(setting: Setting): ReferenceItem[] {
  return [{ path: "bin/ctx", rule: "release", entry: executable(setting, "cortexfs-exec", "ctx", 0o555) }]
}
