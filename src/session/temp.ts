import { CtxError } from "../abi/error.js"
import type { Recorder, RunStart } from "./recorder.js"

/** Begins a run of scope `temp`: same frames with `ts` but without `seq`, kept nowhere (session-abi 5, 6.1). */
export function beginTemp(_start: RunStart): Recorder {
  throw new CtxError("ENOSYS", "temp recorder")
}
