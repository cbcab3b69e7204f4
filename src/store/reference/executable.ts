import { CtxError } from "../../abi/error.js"
import type { Entry, Setting } from "../tree.js"

/** Bytes the kernel reads of an interpreter line, its LF included. */
const LINE_MAX = 255

/**
 * An executable of the reference tree: a text file whose one line names the program that runs it, by an absolute path
 * (rolling-upgrades.md 6.1). Errors: `EINVAL` when the installed path holds a blank, `ENAMETOOLONG` when the line is
 * longer than the kernel reads.
 */
export function executable(
  setting: Setting,
  program: string,
  argument: string,
  mode: number,
  owner: { uid: number; gid: number } = setting,
): Entry {
  const path = `${setting.libRoot}/bin/${program}`
  const hint = "install the product at another path"
  if (/[\s\0]/.test(path)) throw new CtxError("EINVAL", `${path}: an interpreter line holds no blank`, { path, hint })
  const data = Buffer.from(`#!${path} ${argument}\n`)
  if (data.length > LINE_MAX) {
    throw new CtxError("ENAMETOOLONG", `${path}: longer than an interpreter line may be`, { path, hint })
  }
  return { kind: "file", data, mode, uid: owner.uid, gid: owner.gid }
}
