// What a client pays for going through /ctx, against the C reference and against the backing file system itself (ext4).
import { execFileSync, spawn } from "node:child_process"
import { chmodSync, chownSync, copyFileSync, mkdirSync, readFileSync, rmSync } from "node:fs"
import { join } from "node:path"
import { makeStack, OWNER, ROOT, type Stack } from "../test/harness/product.js"
import { runProgram } from "../test/harness/program.js"
import { buildReference, startReference } from "./fixture/reference.js"

export interface Row {
  measure: string
  unit: string
  ours: number
  base: number
  /** ours ÷ base, lower is better. */
  ratio: number
  /** The highest ratio that is wanted. */
  goal?: number
}

/** A directory that a measure compares: where the client sees it, and where it lies on ext4. */
interface Place {
  seen: string
  source: string
}
type Side = "ext4" | "ours" | "oursUncached" | "c" | "cUncached"
type Sides = Record<Side, Place>

const CLIENTS = [1, 4, 8]
const ROUNDS = 31
const CALLS = 240
/** Names of the measures to run, as a regular expression; all without it. */
const ONLY = new RegExp(process.env.CORTEXFS_BENCH_ONLY ?? "")
// Half a GiB: more dirty pages than that and the disk, not the path to it, is measured.
const MIB = 512
const DATA_MEASURES = [
  { name: "read", title: "read 512 MiB", goal: 1.05, calls: MIB, rounds: 9, unit: "ms", scale: MIB / 1000 },
  { name: "write", title: "write 512 MiB", goal: 1.05, calls: MIB, rounds: 9, unit: "ms", scale: MIB / 1000 },
  { name: "append", title: "append 300 B", goal: 1.43, calls: 10_000, rounds: 15, unit: "us", scale: 1 },
  {
    name: "append+fdatasync",
    title: "append 4 KiB+fdatasync",
    goal: 1.11,
    calls: 20,
    rounds: 31,
    unit: "us",
    scale: 1,
  },
]
/** Against the C reference: with the kernel keeping names and attributes for 1 s, and not at all. */
const CALL_MEASURES = ["stat", "open+close", "open+read+close", "create+unlink", "rename", "absent"]

const ratioOf = (ours: number, base: number) => Math.round((ours / base) * 1000) / 1000

function row(measure: string, unit: string, ours: number, base: number, goal?: number): Row {
  return { measure, unit, ours, base, ratio: ratioOf(ours, base), ...(goal === undefined ? {} : { goal }) }
}

/** Runs one measure on some sides; gives µs per call for each. */
type Timer = (
  name: string,
  sides: Side[],
  options: { clients?: number; calls: number; rounds?: number },
) => Promise<number[]>

function makeTimer(client: string, dirs: Sides): Timer {
  let count = 0
  return async (name, sides, { clients = 1, calls, rounds = ROUNDS }) => {
    // A new name for each measure: the kernel still knows the old one, which is removed behind the mounts.
    const place = `measure${++count}`
    const seen = sides.map(side => join(dirs[side].seen, place))
    const command = [client, name, `${clients}`, `${calls}`, `${rounds}`, ...seen]
    // Made behind the mounts: the reference gives what it makes to root.
    const sources = sides.map(side => makeOwned(join(dirs[side].source, place)))
    for (const source of sources) for (let i = 0; i < clients; i++) makeOwned(join(source, `${i}`))
    if (name.includes("readdir")) {
      execFileSync(client, ["fill", "1", `${calls}`, "1", ...sources], { stdio: "ignore" })
    }
    const { code, stdout, stderr } = await runProgram(command, { uid: OWNER, timeoutMs: 300_000 })
    if (code !== 0) throw new Error(`${name}: ${stderr}`)
    for (const dir of sources) rmSync(dir, { recursive: true })
    return JSON.parse(stdout)
  }
}

async function measureCalls(time: Timer): Promise<Row[]> {
  const rows: Row[] = []
  for (const name of CALL_MEASURES.filter(name => ONLY.test(name))) {
    for (const clients of CLIENTS) {
      const [ext4, ours, oursUncached, c, cUncached] = await time(
        name,
        ["ext4", "ours", "oursUncached", "c", "cUncached"],
        { clients, calls: Math.ceil(CALLS / clients) },
      )
      const goal = clients === 4 || name === "open+read+close" ? undefined : 0.8
      const title = `${name}, ${clients} client${clients > 1 ? "s" : ""}`
      rows.push(row(`${title}, 1 s / C`, "us", ours!, c!, goal))
      rows.push(row(`${title}, uncached / C`, "us", oursUncached!, cUncached!, goal))
      if (clients === 1) rows.push(row(`${title}, 1 s / ext4`, "us", ours!, ext4!))
    }
  }
  return rows
}

async function measureListings(time: Timer): Promise<Row[]> {
  const rows: Row[] = []
  const sides: Side[] = ["ext4", "ours", "c"]
  for (const [name, goal] of [
    ["readdir", 1],
    ["readdir+stat", undefined],
  ] as const) {
    if (!ONLY.test(name)) continue
    const [ext4, ours, c] = (await time(name, sides, { calls: 1000 })).map(us => us * 1000)
    rows.push(row(`${name} of 1,000 / ext4`, "us", ours!, ext4!, goal))
    rows.push(row(`${name} of 1,000 / C`, "us", ours!, c!))
  }
  if (!ONLY.test("fresh")) return rows
  const each: number[] = []
  for (const count of [10_000, 100_000]) {
    const [ext4, ours, c] = (await time("fresh readdir", sides, { calls: count, rounds: 9 })).map(
      us => (us * count) / 1000,
    )
    rows.push(
      row(`ls -f of ${count.toLocaleString("en")}, fresh / C`, "ms", ours!, c!, count === 100_000 ? 1 : undefined),
    )
    rows.push(row(`ls -f of ${count.toLocaleString("en")}, fresh / ext4`, "ms", ours!, ext4!))
    each.push((ours! / count) * 1e6)
  }
  rows.push(row("entry of 100,000 / of 10,000", "ns", each[1]!, each[0]!, 1.5))
  return rows
}

async function measureData(time: Timer): Promise<Row[]> {
  const rows: Row[] = []
  for (const { name, title, goal, calls, rounds, unit, scale } of DATA_MEASURES) {
    if (!ONLY.test(name)) continue
    const [ext4, ours, c] = (await time(name, ["ext4", "ours", "c"], { calls, rounds })).map(us => us * scale)
    rows.push(row(`${title} / ext4`, unit, ours!, ext4!, goal))
    rows.push(row(`${title} / C`, unit, ours!, c!))
  }
  return rows
}

function residentMb(pid: number): number {
  return Math.round(Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))![1]) / 102.4) / 10
}

async function measureMemory(pid: number): Promise<Row> {
  const bare = spawn(process.execPath, ["-e", "setInterval(()=>{},1e9)"], {
    stdio: "ignore",
    env: { PATH: process.env.PATH },
  })
  await new Promise(resolve => setTimeout(resolve, 1000))
  const base = residentMb(bare.pid!)
  bare.kill()
  return row("RSS / bare node", "MiB", residentMb(pid), base, 1.4)
}

function makeOwned(dir: string): string {
  mkdirSync(dir, { recursive: true })
  chownSync(dir, OWNER, OWNER)
  return dir
}

/** The client where OWNER may run it. */
function buildClient(stack: Stack): string {
  const built = join(ROOT, "build/bench-client")
  execFileSync("g++", ["-O2", "-std=c++17", "-o", built, join(ROOT, "bench/client.cc")])
  const client = join(stack.dir, "client")
  copyFileSync(built, client)
  chmodSync(client, 0o755)
  return client
}

/** Rows of this bench; what each is compared with stands after the slash. */
export async function measure(): Promise<Row[]> {
  buildReference()
  const stack = await makeStack()
  const stops: (() => Promise<unknown>)[] = [() => stack.stop()]
  try {
    const mount = await stack.startHost({ timeoutMs: 1_200_000 })
    const agent = `home/${OWNER}/agent/coder`
    // The session zone is what the kernel may never keep (fuse.md 8.1).
    const ours = (below: string) => ({ seen: join(stack.ctx, below), source: makeOwned(join(stack.dataRoot, below)) })
    const reference = async (name: string, options: string) => {
      const source = makeOwned(join(stack.dir, `${name}-source`))
      const seen = join(stack.dir, name)
      const { stop } = await startReference(source, seen, options)
      stops.push(stop)
      return { seen, source }
    }
    const ext4 = makeOwned(join(stack.dir, "ext4"))
    const time = makeTimer(buildClient(stack), {
      ext4: { seen: ext4, source: ext4 },
      ours: ours(`${agent}/data/bench`),
      oursUncached: ours(`${agent}/session/bench/context`),
      c: await reference("c", "cache=auto,timeout=1"),
      cUncached: await reference("c-uncached", "cache=never,timeout=0"),
    })
    const memory = await measureMemory(mount.child.pid!)
    return [...(await measureCalls(time)), ...(await measureListings(time)), ...(await measureData(time)), memory]
  } finally {
    for (const stop of stops.reverse()) await stop()
  }
}
