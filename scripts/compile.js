// Compiles src/ to dist/ from nothing, so that a removed module cannot linger, and copies the data files beside the code.
import { spawnSync } from "node:child_process"
import { cpSync, rmSync } from "node:fs"
import { createRequire } from "node:module"
import { root } from "./setup.js"

rmSync(`${root}/dist`, { recursive: true, force: true })
rmSync(`${root}/build/tsc.tsbuildinfo`, { force: true })
const tsc = createRequire(import.meta.url).resolve("typescript/bin/tsc")
const compiled = spawnSync(process.execPath, [tsc, "-p", "tsconfig.json"], { cwd: root, stdio: "inherit" })
if (compiled.status === 0)
  cpSync(`${root}/src`, `${root}/dist`, {
    recursive: true,
    filter: path => !path.endsWith(".ts"),
  })
process.exit(compiled.status ?? 1)
