// cortexfs-agent: the runtime of one agent. Starts as root or as the owner, serves until SIGTERM, op `stop`, or, when
// its socket was handed over, a minute without work.
import { homedir } from "node:os"
import { resolve } from "node:path"
import { parseArgs } from "node:util"

import { CtxError, toCtxError } from "../abi/error.js"
import { validateName } from "../abi/name.js"
import { CONFIG_DIR, RUN_DIR, userConfigDir, userRunDir } from "../abi/path.js"
import { VERSION } from "../abi/product.js"
import { type ServeOptions, serveAgent } from "../endpoint/serve.js"
import { describeInternal, writeJournal } from "../native/journal.js"
import { sdNotify } from "../native/sys.js"

const USAGE = "cortexfs-agent --source DIR --agent NAME [--run DIR] [--config DIR] [--listen PATH]"

/** What the words ask for: to serve, or to print a text. Errors: `usage`. */
function readArguments(): { serve: ServeOptions } | { show: string } {
  try {
    const { values } = parseArgs({
      options: {
        source: { type: "string" },
        agent: { type: "string" },
        run: { type: "string" },
        config: { type: "string" },
        listen: { type: "string" },
        help: { type: "boolean" },
        version: { type: "boolean" },
      },
    })
    if (values.help) return { show: `usage: ${USAGE}` }
    if (values.version) return { show: `cortexfs/${VERSION}` }
    const { source, agent, listen } = values
    if (source === undefined || agent === undefined)
      throw new CtxError("usage", "--source DIR and --agent NAME are needed")
    // A unit writes `+` as `\\x2b` in its instance name. root-abi 8, units 1
    const name = validateName(agent.replaceAll("\\x2b", "+"))
    const uid = process.geteuid!()
    const user = { env: process.env, home: homedir() }
    const runDir = values.run ?? (uid === 0 ? RUN_DIR : userRunDir(uid))
    const configDir = values.config ?? (uid === 0 ? CONFIG_DIR : userConfigDir(user))
    return { serve: { source, name, runDir, configDir, listen: listen && resolve(listen) } }
  } catch (e) {
    const { message } = toCtxError(e)
    throw new CtxError("usage", message, { hint: USAGE })
  }
}

// Node.js would print several lines, and with them what was being read.
process.on("uncaughtException", error => {
  writeJournal("cortexfs-agent", `internal: ${describeInternal(error)}`, "error")
  process.exit(70)
})

async function main(): Promise<number> {
  try {
    const asked = readArguments()
    if ("serve" in asked) return await serveAgent(asked.serve)
    process.stdout.write(`${asked.show}\n`)
    return 0
  } catch (e) {
    const error = toCtxError(e)
    const words = [error.code, error.message, ...(error.hint === undefined ? [] : [error.hint])]
    writeJournal("cortexfs-agent", words.join(": "), "error")
    if (error.errno !== 0) sdNotify(`ERRNO=${-error.errno}`)
    if (error.code === "usage") return 2
    if (error.code === "internal") return 70
    return error.code === "EPERM" || error.code === "EACCES" ? 13 : 69
  }
}

// A loop with nothing left to wait for, before the end, is a fault.
process.exitCode = 70
void main().then(code => process.exit(code))
