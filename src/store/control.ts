// The bytes of one control file, and one clear refusal for what is no control.
import { CONTROL_MAX } from "../abi/control.js"
import { CtxError, codeOf } from "../abi/error.js"
import { refuse } from "../abi/issue.js"
import { readFileNofollow } from "./file.js"

/**
 * The bytes of the control at `what`, a path below `dirFd` such as `agent/coder.d/mount`; undefined when it is absent.
 * Nothing is followed and nothing is waited for. Errors, each naming `what`: `EINVAL` (a link, anything that is not a
 * regular file, more than 64 KiB), `EACCES` (not readable by this process). root-abi.md 3
 */
export function findControl(dirFd: number, what: string): Buffer | undefined {
  try {
    return readFileNofollow({ dirFd, name: what }, CONTROL_MAX)
  } catch (error) {
    switch (codeOf(error)) {
      case "ENOENT":
        return undefined
      case "ELOOP":
        return refuse(what, "is a symbolic link")
      // Sockets and devices without a driver refuse the open itself.
      case "EISDIR":
      case "EINVAL":
      case "ENXIO":
      case "ENODEV":
        return refuse(what, "is not a regular file")
      case "EFBIG":
        return refuse(what, `has more than ${CONTROL_MAX} bytes`)
      case "EACCES":
      case "EPERM":
        throw new CtxError("EACCES", `${what}: cannot be read by uid ${process.geteuid!()}: correct its mode or owner`)
      default:
        throw error
    }
  }
}
