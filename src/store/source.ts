// What a program may serve: a source that is a reference tree. Looked at before anything is written for it.
import { constants } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import { isAtOrBelow } from "../abi/path.js"
import { fstatat } from "../native/sys.js"
import { openSource, pinSource, type Source, unpinSource } from "./generation.js"
import { findState, STATE_FILE } from "./state.js"

const CLASSES = ["agent", "model", "tool"]

function refuse(path: string, why: string, cause?: unknown): CtxError {
  return new CtxError("EINVAL", `${path} is no reference tree: ${why}`, {
    path,
    hint: "make one with ctx bootstrap or name STORAGE/current",
    cause,
  })
}

/** What is thrown for `path` when opening or reading its state failed with `error`. */
function explain(path: string, error: unknown): unknown {
  const code = codeOf(error)
  if (code === "ENOENT") return new CtxError("ENOENT", `source ${path} does not exist`, { path, cause: error })
  if (code === "ENOTDIR") return new CtxError("ENOTDIR", `source ${path} is not a directory`, { path, cause: error })
  if (code === "EACCES") {
    const hint = "start it as its owner, or make a storage of your own with ctx storage update"
    return new CtxError("EACCES", `source ${path} cannot be read by uid ${process.geteuid!()}`, {
      path,
      hint,
      cause: error,
    })
  }
  // A file of state that is malformed, a link, or no file.
  if (code === "EINVAL" || code === "ELOOP" || code === "EISDIR")
    return refuse(path, error instanceof CtxError ? error.message : `${STATE_FILE} is no plain file`, error)
  return error
}

function isDirectory(source: Source, name: string): boolean {
  try {
    return (fstatat(source.dirFd, name).mode & constants.S_IFMT) === constants.S_IFDIR
  } catch (error) {
    if (codeOf(error) === "ENOENT") return false
    throw error
  }
}

function check(source: Source, path: string): void {
  if (findState(source.dirFd) === undefined) throw refuse(path, `it has no ${STATE_FILE}`)
  for (const name of CLASSES) if (!isDirectory(source, name)) throw refuse(path, `it has no directory ${name}`)
}

/**
 * Pins a source as `pinSource` does and makes sure that it is a reference tree: a well-formed state file beside the
 * directories of the classes. Nothing is written. Errors: `EINVAL` for any other directory, and those of `pinSource`.
 * Implements fuse.md 1.
 */
export async function pinTree(path: string): Promise<Source> {
  const source = await pinSource(path).catch(error => {
    throw explain(path, error)
  })
  try {
    check(source, path)
    return source
  } catch (error) {
    unpinSource(source)
    throw explain(path, error)
  }
}

/**
 * Makes sure that `path` is a reference tree and that `mountPoint` lies neither in it nor in its storage and data, as a
 * program must before it makes a directory for a mount. Errors: `EINVAL`, `ENOTDIR`, those of `openSource`. Implements fuse.md 1.
 */
export function checkTree(path: string, mountPoint: string): void {
  let source: Source
  try {
    source = openSource(path)
  } catch (error) {
    throw explain(path, error)
  }
  try {
    check(source, path)
    const { dir, dataRoot } = source
    const closed = [dir, ...["home", "shared", "storage"].map(name => `${dataRoot}/${name}`)]
    const around = closed.find(one => isAtOrBelow(mountPoint, one))
    if (around !== undefined) {
      throw new CtxError("EINVAL", `mount point ${mountPoint} lies in ${around}, which it would show`, {
        path: mountPoint,
        hint: "choose a directory outside of source and storage",
      })
    }
  } finally {
    unpinSource(source)
  }
}
