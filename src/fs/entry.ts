// Collects the generated tree of one snapshot: what fuse.md 8.1 says of each class of generated node is written here once.
import type { Entry } from "../native/fuse.js"
import { type RootOwner, type ZoneName, zoneIds } from "./zone.js"

/** What a generated node may say of itself; owner and time default to the tree's. */
export interface NodeFacts {
  uid?: number
  gid?: number
  mtimeMs?: number
  kind?: string
  /** Host path of the file whose place this node takes; shown as `backing_path`. */
  backingPath?: string
  /** The zone whose verdicts hold for the name; without one nothing can be done to it. */
  zone?: ZoneName
  /** True when nothing of the node follows from the sources, so that nobody waits for their check. */
  isFixed?: boolean
}

/** Which cache class a generated file belongs to (fuse.md 8.1): the object executables and summaries are live. */
export type FileClass = "live" | "control"

/** A list of entries in the making; parents are added before children, and each directory's children in byte order. */
export class Listing {
  readonly entries: Entry[] = []
  readonly #owner: RootOwner
  readonly #mtimeMs: number

  /** `owner` and `mtimeMs` are those of every node that says nothing else. */
  constructor(owner: RootOwner, mtimeMs: number) {
    this.#owner = owner
    this.#mtimeMs = mtimeMs
  }

  #common({ uid, gid, mtimeMs, kind, isFixed, zone }: NodeFacts) {
    return {
      isFixed,
      zone: zone && zoneIds[zone],
      uid: uid ?? this.#owner.uid,
      gid: gid ?? this.#owner.gid,
      mtimeMs: mtimeMs ?? this.#mtimeMs,
      kind: kind ?? "ctx.ordinary",
    }
  }

  /** A generated directory. */
  addDir(path: string, mode = 0o755, facts: NodeFacts = {}): void {
    this.entries.push({ path, type: "dir", mode, ...this.#common(facts), entryTtlMs: 1000, attrTtlMs: 1000 })
  }

  /** A generated file with these bytes until the next snapshot. */
  addFile(path: string, body: Buffer, mode: number, fileClass: FileClass, facts: NodeFacts = {}): void {
    const ttlMs = fileClass === "live" ? 0 : 1000
    this.entries.push({
      path,
      type: "file",
      body,
      mode,
      ...this.#common(facts),
      data: "drop",
      backingPath: facts.backingPath,
      entryTtlMs: ttlMs,
      attrTtlMs: ttlMs,
    })
  }

  /** A generated symlink; socket entries are live, model aliases are controls. */
  addLink(path: string, target: string, fileClass: FileClass, facts: NodeFacts = {}): void {
    const ttlMs = fileClass === "live" ? 0 : 1000
    const common = this.#common(facts)
    this.entries.push({ path, type: "link", target, mode: 0o777, ...common, entryTtlMs: ttlMs, attrTtlMs: ttlMs })
  }

  /** A file that is rendered anew at each open. */
  addLive(path: string, sizeBytes: number, mode: number): void {
    this.entries.push({ path, type: "live", mode, ...this.#common({ isFixed: true }), sizeBytes })
  }

  /** A backing file or directory shown here; what lies below it follows from the zone. */
  addBacking(
    path: string,
    volume: number,
    rel: string,
    zone: ZoneName,
    facts: { mode?: number; uid?: number; gid?: number; isFixed?: boolean } = {},
  ): void {
    this.entries.push({ path, type: "backing", volume, rel, zone: zoneIds[zone], ...facts })
  }
}
