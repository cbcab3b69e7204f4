import { closeSync, fstatSync } from "node:fs"
import { parseValue } from "../abi/control.js"
import { CtxError, codeOf } from "../abi/error.js"
import { CONFIG_DIR } from "../abi/path.js"
import { LIB_ROOT } from "../native/addon.js"
import { findIdentity, type Identity, readIdentity, readOwnIdentity } from "./account.js"
import { openFile, readWhole } from "./file.js"
import type { Setting } from "./tree.js"

const OWNER_FILE_MAX = 4096
/** The account whose managed agents are when nobody else is named (units.md 2.10). */
const SYSTEM_USER = "cortexfs"

/** What a caller decides about a tree. */
export interface SettingOptions {
  /** uid or user name of new managed agents */
  owner?: string
  /** the directory whose `bin/` the executables name; the running product by default */
  libRoot?: string
}

/**
 * The owner that a host file names; `undefined` without the file. Errors: `EACCES` when others could have written it,
 * `ELOOP`, `EINVAL` when it is not one line with a uid or user name.
 */
function findOwnerFile(): Identity | undefined {
  const path = `${CONFIG_DIR}/owner`
  let fd: number
  try {
    fd = openFile(path)
  } catch (error) {
    if (codeOf(error) === "ENOENT") return undefined
    throw error
  }
  try {
    const stat = fstatSync(fd)
    if (stat.uid !== 0 || (stat.mode & 0o022) !== 0) {
      throw new CtxError("EACCES", `${path}: others than root may write it`, { path, hint: "chown root, chmod go-w" })
    }
    return readIdentity(parseValue(readWhole(fd, OWNER_FILE_MAX, path), path), path)
  } finally {
    closeSync(fd)
  }
}

/** Whose new managed agents are (rolling-upgrades.md 6.1). Errors: `EINVAL` as root when nobody says it. */
function findNewOwner(option: Identity | undefined, isRoot: boolean): Identity {
  if (option) return option
  if (!isRoot) return readOwnIdentity()
  const owner = findOwnerFile() ?? findIdentity(SYSTEM_USER)
  if (owner) return owner
  throw new CtxError("EINVAL", "no owner for the managed agents", {
    hint: `write a uid or user name into ${CONFIG_DIR}/owner, or use --owner`,
  })
}

/** The identity of `--owner`. Errors: `EINVAL` for uid 0 or an unknown user, `EPERM` for another uid without privilege. */
export function readOwnerOption(owner: string | undefined): Identity | undefined {
  if (owner === undefined) return undefined
  const identity = readIdentity(owner, "--owner")
  if (process.geteuid!() === 0) return identity
  if (identity.uid === process.geteuid!()) return readOwnIdentity()
  throw new CtxError("EPERM", `--owner ${owner}: only root makes agents for another user`, { hint: "leave it out" })
}

/** Facts of this installation for the trees it makes. Errors: those of `readOwnerOption`. */
export function readSetting(options: SettingOptions = {}): Setting {
  const isRoot = process.geteuid!() === 0
  const option = readOwnerOption(options.owner)
  let owner: Identity | undefined
  return {
    uid: process.geteuid!(),
    gid: isRoot ? 0 : process.getegid!(),
    dirMode: isRoot ? 0o755 : 0o700,
    libRoot: options.libRoot ?? LIB_ROOT,
    newOwner: () => {
      owner ??= findNewOwner(option, isRoot)
      return owner
    },
  }
}
