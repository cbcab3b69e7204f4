// The units on a booted machine: what a cold start, a warm connection and an idle process cost, against plain Node.js.
import { readFileSync } from "node:fs"
import { bootSystem, type System } from "../test/harness/systemd.js"
import { uidOf } from "../test/harness/systemd-agent.js"
import type { Row } from "./fuse.js"

const ROUNDS = 15
const WARM = 300
const RUNTIME = "cortexfs-agent@coder.service"
const SOCKET = "/ctx/agent/coder.sock"

// Programs that run inside, as the owner, and time themselves: their own start is not part of what they measure.
const CLIENT = `
const { connect } = require("node:net")
const [path, request, rounds] = process.argv.slice(1)
const one = () => new Promise((resolve, reject) => {
  const began = process.hrtime.bigint()
  const socket = connect(path, () => socket.write(request + "\\n"))
  socket.once("data", () => { resolve(Number(process.hrtime.bigint() - began) / 1e3); socket.destroy() })
  socket.once("error", reject)
})
;(async () => {
  const times = []
  for (let i = 0; i < Number(rounds); i++) times.push(await one())
  console.log(JSON.stringify(times))
})()`
const SPAWNS = `
const { spawnSync } = require("node:child_process")
const [rounds, ...lines] = process.argv.slice(1)
const commands = [[process.execPath, "-e", "0"], ...lines.map(line => line.split(" "))]
const times = commands.map(() => [])
for (let i = 0; i <= Number(rounds); i++) {
  for (const [at, [file, ...args]] of commands.entries()) {
    const began = process.hrtime.bigint()
    const { status } = spawnSync(file, args)
    if (status !== 0) throw new Error(file + " " + args.join(" ") + " ended with " + status)
    if (i > 0) times[at].push(Number(process.hrtime.bigint() - began) / 1e3)
  }
}
console.log(JSON.stringify(times))`
const ECHO = `
require("node:net").createServer(socket => socket.on("data", data => socket.end(data))).listen(process.argv[1])`
const SLEEPER = "setInterval(() => {}, 1e9)"

function median(values: number[]): number {
  return values.toSorted((a, b) => a - b)[values.length >> 1]!
}

function row(measure: string, unit: string, ours: number, base: number, goal?: number): Row {
  return {
    measure,
    unit,
    ours,
    base,
    ratio: Math.round((ours / base) * 100) / 100,
    ...(goal === undefined ? {} : { goal }),
  }
}

/** Resident memory of a process inside, in MiB. */
function residentMb(system: System, pid: number): number {
  const kib = Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(system.see(`/proc/${pid}/status`), "utf8"))![1])
  return Math.round((kib / 1024) * 10) / 10
}

async function ask<T>(system: System, uid: number, script: string, ...args: string[]): Promise<T> {
  return JSON.parse(await system.text(["node", "-e", script, ...args], { uid, timeoutMs: 60_000 }))
}

/** Microseconds of each round of the client. */
async function times(system: System, uid: number, path: string, request: string, rounds: number): Promise<number[]> {
  return await ask(system, uid, CLIENT, path, request, String(rounds))
}

/** Median milliseconds of `node -e 0` and of each command, round by round in turn. */
async function spawnMs(system: System, uid: number, ...commands: string[]): Promise<number[]> {
  const all = await ask<number[][]>(system, uid, SPAWNS, String(ROUNDS), ...commands)
  return all.map(one => median(one) / 1000)
}

/** Milliseconds until the whole set, down to storage, is up again, as `systemctl start` waits for it. */
async function startSet(system: System): Promise<number> {
  await system.manage("stop", "cortexfs-storage.service")
  const began = performance.now()
  await system.manage("start", "cortexfs@coder")
  return performance.now() - began
}

/** First frame of a `send` on a socket whose runtime is not up, in microseconds. */
async function startCold(system: System, uid: number): Promise<number> {
  await system.manage("stop", RUNTIME)
  const request = JSON.stringify({ op: "send", input: "hello" })
  const [us] = await times(system, uid, SOCKET, request, 1)
  await system.until("the run's end", async () =>
    /runs=0|idle/.test((await system.show(RUNTIME, "StatusText")).StatusText!),
  )
  return us!
}

/** Seconds from the last connection to the exit of a runtime that may be idle for one. */
async function exitIdle(system: System, uid: number): Promise<number> {
  system.write(`/run/systemd/system/${RUNTIME}.d/idle.conf`, "[Service]\nEnvironment=CORTEXFS_IDLE_S=1\n")
  await system.manage("daemon-reload")
  await system.manage("stop", RUNTIME)
  await times(system, uid, SOCKET, '{"op":"ping"}', 1)
  const began = performance.now()
  await system.until("the idle exit", async () => (await system.state(RUNTIME)) === "inactive")
  return (performance.now() - began) / 1000
}

/** Rows of this bench. */
export async function measure(): Promise<Row[]> {
  const system = await bootSystem()
  try {
    const uid = await uidOf(system, "cortexfs")
    await system.manage("start", "cortexfs@coder")
    const cold: number[] = []
    const plainMs: number[] = []
    for (let i = 0; i < ROUNDS; i++) {
      plainMs.push(...(await ask<number[][]>(system, uid, SPAWNS, "1"))[0]!)
      cold.push((await startCold(system, uid)) / 1000)
    }
    const node = median(plainMs) / 1000
    const rows = [row("first frame, cold", "ms", median(cold), node, 3)]
    const commands = ["ctx agent status coder", "ctx status"]
    const [base, ...ours] = await spawnMs(system, uid, ...commands)
    for (const [i, command] of commands.entries()) rows.push(row(command, "ms", ours[i]!, base!, 2.5))

    const echo = system.start(["node", "-e", ECHO, "/run/user-echo.sock"])
    await system.until("the echo", async () => (await system.run(["test", "-S", "/run/user-echo.sock"])).code === 0)
    const ping = ['{"op":"ping"}', WARM] as const
    await system.text(["chmod", "666", "/run/user-echo.sock"])
    const warm = median(await times(system, uid, SOCKET, ...ping))
    rows.push(
      row("connect to pong, warm", "us", warm, median(await times(system, uid, "/run/user-echo.sock", ...ping))),
    )
    echo.kill()

    const sleeper = system.start(["node", "-e", SLEEPER])
    const pid = await system.until("plain node", () => Number(system.processes(SLEEPER).at(-1)?.split(" ")[0]))
    await system.until("its start", () => residentMb(system, pid) > 35)
    const plain = residentMb(system, pid)
    for (const [name, unit] of [
      ["host view", "cortexfs.service"],
      ["view", "cortexfs@coder.service"],
      ["runtime", RUNTIME],
    ] as const) {
      rows.push(
        row(
          `RSS ${name}, idle`,
          "MiB",
          residentMb(system, await system.mainPid(unit)),
          plain,
          name === "runtime" ? undefined : 1.4,
        ),
      )
    }
    sleeper.kill()

    const starts: number[] = []
    for (let i = 0; i < 5; i++) starts.push(await startSet(system))
    rows.push(row("start of the set", "ms", median(starts), node))
    rows.push(row("idle exit after 1 s", "s", await exitIdle(system, uid), 1))
    return rows
  } finally {
    await system.stop()
  }
}
