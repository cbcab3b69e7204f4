// `cortexfs-exec`: interpreter of the scripts in /ctx/bin. The kernel starts it as PROGRAM SCRIPT ARG...; it becomes
// PROGRAM, so that the tree holds a line of text and the product the code.

import { CtxError } from "../abi/error.js"
import { describeFailure, formatFailure } from "../client/failure.js"

const PROGRAMS: Readonly<Record<string, () => Promise<unknown>>> = {
  ctx: () => import("./ctx.js"),
}

const [program = "", script = "", ...args] = process.argv.slice(2)
const start = Object.hasOwn(PROGRAMS, program) ? PROGRAMS[program] : undefined
if (start === undefined) {
  const hint = `one of ${Object.keys(PROGRAMS).join(" ")}`
  const failure = describeFailure(new CtxError("ENOENT", `program ${program === "" ? '""' : program}`, { hint }))
  process.stderr.write(formatFailure(failure, "cortexfs-exec"))
  process.exitCode = failure.exit
} else {
  process.argv = [process.argv[0] as string, script, ...args]
  await start()
}
