// What gc and archive share: the home they work on, and their lines.

import { closeSync } from "node:fs"
import { codeOf } from "../abi/error.js"
import { isCleanPath } from "../abi/name.js"
import { openDurable } from "../session/backing.js"
import { checkApart } from "../session/destination.js"
import type { Home } from "../session/gc.js"
import { escapeText } from "./escape.js"
import { usageError } from "./failure.js"
import type { Places } from "./place.js"

/**
 * Runs `work` with the caller's home on the durable tree, after a look at `archiveDir`; undefined without a home.
 * Errors: `usage` for an archive directory that is no ABS of ctx-coreutils 2.3; `EINVAL` one that overlaps the live
 * sessions; `ENOENT` one without a parent; `EPERM` the durable tree is not visible from here.
 */
export async function withHome<T>(
  places: Places,
  archiveDir: string | undefined,
  work: (home: Home) => Promise<T>,
): Promise<T | undefined> {
  if (archiveDir !== undefined && (!isCleanPath(archiveDir) || archiveDir === "/")) {
    throw usageError(`--archive-dir ${archiveDir === "" ? '""' : archiveDir} is no clean absolute path`)
  }
  let fd: number
  try {
    fd = openDurable(places.home)
  } catch (error) {
    if (codeOf(error) === "ENOENT") return undefined
    throw error
  }
  try {
    if (archiveDir !== undefined) checkApart(archiveDir, places.home, fd)
    return await work({ fd, path: places.home })
  } finally {
    closeSync(fd)
  }
}

/** The line `VERB⇥AGENT⇥SESSION⇥DETAIL` without its LF. ctx-coreutils 7.2 */
export function formatRow(verb: string, agent: string, session: string, detail: string | undefined): string {
  return [verb, agent, session, detail === undefined ? "-" : escapeText(detail)].join("\t")
}
