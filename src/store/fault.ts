import { ERRNO, isErrnoName } from "../abi/errno.js"
import { CtxError } from "../abi/error.js"

/** The points of rolling-upgrades.md 10, in order. */
export const FAULT_POINTS = [
  "locked",
  "swept",
  "quiesced",
  "staged",
  "cloned",
  "migrated",
  "reconciled",
  "stated",
  "synced",
  "validated",
  "published",
  "linked",
  "switched",
  "confirmed",
  "pruning",
] as const

export type FaultPoint = (typeof FAULT_POINTS)[number]

/**
 * Marks that an update has reached a point. `CORTEXFS_FAULT=storage.<point>:<kill|ERRNO>` ends the process here with
 * SIGKILL or makes the step that ends here fail (rolling-upgrades.md 13). Errors: the injected errno.
 */
export function reach(point: FaultPoint): void {
  const fault = process.env.CORTEXFS_FAULT
  if (!fault?.startsWith(`storage.${point}:`)) return
  const what = fault.slice(fault.indexOf(":") + 1)
  if (what === "kill") process.kill(process.pid, "SIGKILL")
  if (isErrnoName(what) && ERRNO[what] > 0) {
    throw new CtxError(what, `storage ${point}: fault from CORTEXFS_FAULT`, { hint: "unset CORTEXFS_FAULT" })
  }
}
