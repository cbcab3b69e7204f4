// Where every way to start ctx comes together.

import { withStandIns } from "./account.js"

/** How ctx is started: `root` holds package.json; `fromSource` takes the commands of src instead of dist. */
export interface StartOptions {
  root: string
  fromSource?: boolean
}

/** Runs one ctx command line and sets the exit code. Loads everything else first here, see `client/account.ts`. */
export async function startCtx(argv: readonly string[], options: StartOptions): Promise<void> {
  const { runCtx } = await withStandIns(() => import("./main.js"))
  await runCtx(argv, options)
}
