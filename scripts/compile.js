// Compiles src/ from nothing, so that a removed module cannot linger, copies the data files beside the code, bundles the
// programs, and then puts the whole in place of dist/ by renames, so that whoever runs from there meets the old or the new product.
import { spawnSync } from "node:child_process"
import { cpSync, mkdirSync, renameSync, rmSync } from "node:fs"
import { createRequire } from "node:module"
import { bundlePrograms } from "./bundle.js"
import { root } from "./setup.js"

const made = `${root}/build/dist-${process.pid}`
const old = `${made}.old`
const tsc = createRequire(import.meta.url).resolve("typescript/bin/tsc")
const args = ["-p", "tsconfig.json", "--outDir", made, "--incremental", "false", "--tsBuildInfoFile", "null"]
mkdirSync(`${root}/build`, { recursive: true })
try {
  const compiled = spawnSync(process.execPath, [tsc, ...args], { cwd: root, stdio: "inherit" })
  process.exitCode = compiled.status ?? 1
  if (compiled.status === 0) {
    cpSync(`${root}/src`, made, { recursive: true, filter: path => !path.endsWith(".ts") })
    await bundlePrograms(made)
    try {
      renameSync(`${root}/dist`, old)
    } catch (error) {
      if (error.code !== "ENOENT") throw error
    }
    renameSync(made, `${root}/dist`)
  }
} finally {
  for (const path of [made, old]) rmSync(path, { recursive: true, force: true })
}
