// The host view (fuse.md 1, 3): the whole tree, for every local user.
import { DOCS_SPACE } from "../abi/name.js"
import { Listing } from "./entry.js"
import { addAgents, addModels, addTools, type Place } from "./object.js"
import type { Sources } from "./source.js"

/** What `bin/` may hold (root-abi 4.2), in byte order. */
const BIN_FILES = ["cortexfs.bootstrap.json", "ctx", "ctxterm", "tsh"]

/** Size that `status` has before it was opened once. */
const STATUS_SIZE = 256

/** The volumes of the durable data in a host view. */
export interface HostVolumes {
  homes: number
  spaces: number
}

/** Adds `status`, `bin` and `model`, which are the same in every view; the root itself first (root-abi 1). */
export function addSystem(listing: Listing, sources: Sources, place: Place): void {
  const { source, sourceVolume, owner } = place
  listing.addDir("", 0o755, { isFixed: true })
  listing.addLive("status", STATUS_SIZE, 0o444)
  listing.addDir("bin")
  for (const name of BIN_FILES) {
    if (sources.find(source.dirFd, `bin/${name}`)?.type !== "file") continue
    const mode = name.endsWith(".json") ? 0o444 : 0o555
    listing.addBacking(`bin/${name}`, sourceVolume, `bin/${name}`, "bin", { mode, ...owner })
  }
  addModels(listing, sources, place)
}

/** The generated tree of the host view as the sources are now. */
export function listHost(sources: Sources, place: Place, volumes: HostVolumes, mtimeMs: number): Listing {
  const { source, owner } = place
  const listing = new Listing(owner, mtimeMs)
  addSystem(listing, sources, place)
  addAgents(listing, sources, place, true, () => true)
  listing.addDir("tool")
  addTools(
    listing,
    sources,
    {
      path: "tool",
      dirFd: source.dirFd,
      hostPath: `${source.dir}/tool`,
      volume: place.sourceVolume,
      rel: "tool",
      isSystem: true,
      kindExec: "ctx.tool.exec",
      zone: "toolcontrols",
    },
    () => true,
  )
  listing.addBacking("home", volumes.homes, "", "homes", { mode: 0o755, ...owner, isFixed: true })
  listing.addBacking("shared", volumes.spaces, "", "spaces", { mode: 0o755, ...owner, isFixed: true })
  const docs = `shared/${DOCS_SPACE}`
  if (sources.find(source.dirFd, docs)?.type === "dir") listing.addBacking(docs, place.sourceVolume, docs, "docs")
  return listing
}
