// Entry of the installed `ctx`.

import { fileURLToPath } from "node:url"
import { runCtx } from "../client/main.js"

await runCtx(process.argv.slice(2), { root: fileURLToPath(new URL("../../", import.meta.url)) })
