// Entry of the installed `ctx`.

import { fileURLToPath } from "node:url"
import { startCtx } from "../client/start.js"

await startCtx(process.argv.slice(2), { root: fileURLToPath(new URL("../../", import.meta.url)) })
