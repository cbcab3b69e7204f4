// The text of /ctx/status (root-abi 4.1), rendered anew at each open.
import { ABI, VERSION } from "../abi/product.js"
import { formatTs } from "../abi/time.js"

/** What `status` tells of one mount; `requests` and `passthrough` are asked of the engine when it is rendered. */
export interface MountState {
  state: "mounted" | "stopping"
  agent?: string
  generation: string
  treeVersion: number
  startedMs: number
}

/** The lines of `status` in their order, each LF-terminated. */
export function formatStatus(
  mount: MountState,
  { requests, passthrough }: { requests: number; passthrough: 0 | 1 },
  nowMs = Date.now(),
): Buffer {
  const lines: [key: string, value: string | number][] = [["state", mount.state]]
  if (mount.agent !== undefined) lines.push(["agent", mount.agent])
  lines.push(
    ["generation", mount.generation],
    ["tree_version", mount.treeVersion],
    ["abi", ABI],
    ["version", VERSION],
    ["pid", process.pid],
    ["started_at", formatTs(mount.startedMs)],
    ["uptime_s", Math.max(0, Math.floor((nowMs - mount.startedMs) / 1000))],
    ["requests", requests],
    ["passthrough", passthrough],
  )
  return Buffer.from(lines.map(([key, value]) => `${key}=${value}\n`).join(""))
}
