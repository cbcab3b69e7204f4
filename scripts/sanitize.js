// `npm run sanitize -- [FILE...]`: builds the addon with AddressSanitizer and UndefinedBehaviorSanitizer and runs the tests
// of the mount, or the given files, with it in every mount that they start. A finding ends that mount, and so its test.
import { spawnSync } from "node:child_process"
import { readdirSync, realpathSync } from "node:fs"
import { join } from "node:path"
import { pathToFileURL } from "node:url"
import { ensureAll, root, SetupFault, say } from "./setup.js"

const BUILD = join(root, "build-asan")
/** Directories of tests that start mounts. */
const AREAS = ["test/native", "test/fs"]

/**
 * Builds the addon with the sanitizers.
 * @returns {{CORTEXFS_TEST_ADDON: string, CORTEXFS_TEST_PRELOAD: string}} variables that tell the tests to start mounts with it
 * @throws {SetupFault} when it cannot be built
 */
export function buildSanitized() {
  const cmake = join(root, "node_modules/.bin/cmake-js")
  const options = { cwd: root, encoding: "utf8" }
  const built = spawnSync(process.execPath, [cmake, "-d", root, "-O", BUILD, "--CDSAN=ON"], options)
  if (built.status !== 0) throw new SetupFault(`the sanitizer build failed:\n${built.stdout}${built.stderr}`)
  const runtime = spawnSync("g++", ["-print-file-name=libasan.so"], options).stdout.trim()
  return { CORTEXFS_TEST_ADDON: join(BUILD, "Release/cortexfs.node"), CORTEXFS_TEST_PRELOAD: realpathSync(runtime) }
}

function main() {
  ensureAll(["build", "run", "test"])
  const env = { ...process.env, ...buildSanitized() }
  const areas = AREAS.flatMap(area =>
    readdirSync(join(root, area))
      .filter(name => name.endsWith(".ts"))
      .map(name => join(root, area, name)),
  )
  const wanted = process.argv.slice(2)
  const files = wanted.length > 0 ? wanted : areas
  const cwd = wanted.length > 0 ? (process.env.INIT_CWD ?? process.cwd()) : root
  return (
    spawnSync(process.execPath, [join(root, "scripts/test.js"), ...files], { cwd, env, stdio: "inherit" }).status ?? 1
  )
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  try {
    process.exit(main())
  } catch (error) {
    if (!(error instanceof SetupFault)) throw error
    say(`cortexfs: ${error.message}`)
    process.exit(1)
  }
}
