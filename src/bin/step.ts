// cortexfs-step: the program of the reference agents. The kernel starts it as the interpreter of an agent's executable
// with the agent's name, that file's path, and the argument of the step protocol.

import { writeSync } from "node:fs"
import { CtxError, toCtxError } from "../abi/error.js"
import { ENVELOPE_MAX } from "../abi/limit.js"
import { STEP_ARGUMENT } from "../abi/product.js"
import { Guest } from "../agent/guest.js"
import { LineReader } from "../agent/reader.js"

/** Writes the whole line before it returns: process.stdout would lose at exit what a full pipe did not take. */
function print(line: string): void {
  const bytes = Buffer.from(line)
  for (let offset = 0; offset < bytes.length; ) offset += writeSync(1, bytes, offset)
}

async function serve(agent: string): Promise<void> {
  const { CTX_SESSION: session = "", CTX_ROOT: root = "", CTX_CONTROL_SOCKET: controlSocket = "" } = process.env
  const guest = new Guest({ agent, session, root, controlSocket, print })
  const lines = new LineReader(process.stdin, ENVELOPE_MAX, why => new CtxError("EINVAL", `envelope: ${why}`))
  for (let isGoingOn = true; isGoingOn; ) {
    const line = await lines.next()
    // The host closes stdin when the run is over.
    if (line === undefined) return
    isGoingOn = await guest.step(line)
  }
}

const [agent, , argument] = process.argv.slice(2)
if (agent === undefined || argument !== STEP_ARGUMENT) {
  process.stderr.write(`cortexfs-step: usage: started by the runtime of an agent with ${STEP_ARGUMENT}\n`)
  process.exit(2)
}
serve(agent).then(
  () => process.exit(0),
  e => {
    writeSync(2, `${toCtxError(e).message}\n`)
    process.exit(1)
  },
)
