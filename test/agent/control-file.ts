// needs: root
// Controls that are no plain files: nobody waits for them, follows them, or answers with the words of a system call.
import { execFileSync } from "node:child_process"
import {
  chmodSync,
  closeSync,
  constants,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs"
import { createServer } from "node:net"
import { join } from "node:path"
import t, { type Test } from "tap"
import { parseRequest } from "../../src/abi/frame.js"
import { parseControlRequest } from "../../src/agent/ask.js"
import { formatEnvelope, parseProgramFrame } from "../../src/agent/envelope.js"
import { Guest } from "../../src/agent/guest.js"
import { readIdentity } from "../../src/agent/identity.js"
import { Presence } from "../../src/agent/presence.js"
import { readAgent } from "../../src/store/agent.js"
import { openSource } from "../../src/store/generation.js"
import { makeDir, OWNER } from "../harness/product.js"
import { runProgram } from "../harness/program.js"

const RUN = "ctx-7f3a90c1d2e4455b8a6c0f1e2d3b4a59"

/** Puts something that is no regular file at `path`. */
function put(kind: "fifo" | "link" | "socket" | "dir" | "device", path: string): void {
  rmSync(path, { recursive: true, force: true })
  if (kind === "fifo") execFileSync("mkfifo", [path])
  else if (kind === "link") symlinkSync("/etc/passwd", path)
  else if (kind === "dir") mkdirSync(path)
  else if (kind === "device") execFileSync("mknod", [path, "c", "511", "77"])
  else execFileSync("python3", ["-c", "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])", path])
}

const base = makeDir()
let places = 0

/** An empty directory of its own. */
function makePlace(): string {
  const dir = join(base, String(++places))
  mkdirSync(dir)
  return dir
}

function makeSource(): string {
  const dir = makePlace()
  const controls = join(dir, "agent/coder.d")
  mkdirSync(controls, { recursive: true })
  const values = { owner: `${OWNER}`, label: "user_u:agent_r:coder_t:s0", model: "debug/echo", abi: "sdk-envelope-v1" }
  for (const [control, value] of Object.entries(values)) writeFileSync(join(controls, control), `${value}\n`)
  return dir
}

t.test("a control that is no regular file is EINVAL in one line that names it", async t => {
  const dir = makeSource()
  const source = openSource(dir)
  t.equal(readAgent(source, "coder").owner, OWNER)
  for (const kind of ["fifo", "socket", "dir", "device", "link"] as const) {
    const message = (control: string) =>
      `agent/coder.d/${control}: ${kind === "link" ? "is a symbolic link" : "is not a regular file"}`
    for (const control of ["mount", "groups", "gid"]) {
      const path = join(dir, "agent/coder.d", control)
      put(kind, path)
      t.throws(() => readAgent(source, "coder"), { code: "EINVAL", message: message(control) }, kind)
      if (control !== "mount")
        t.throws(() => readIdentity(source, "coder"), { code: "EINVAL", message: message(control) }, kind)
      rmSync(path, { recursive: true })
    }
    put(kind, join(dir, "agent/coder.d/tools"))
    const { tools, toolsFault } = readAgent(source, "coder")
    t.match({ tools, toolsFault }, { tools: [], toolsFault: { code: "EINVAL", message: message("tools") } })
    rmSync(join(dir, "agent/coder.d/tools"), { recursive: true })
    put(kind, join(dir, "agent/coder.d/policy"))
    t.equal(readAgent(source, "coder").policy, undefined, `a ${kind} as policy denies everything`)
    rmSync(join(dir, "agent/coder.d/policy"), { recursive: true })
  }
})

t.test("a control that the owner cannot read is EACCES in one line that names it", async t => {
  const dir = makeSource()
  writeFileSync(join(dir, "agent/coder.d/mount"), "")
  chmodSync(join(dir, "agent/coder.d/mount"), 0o600)
  const script = `
    const { readAgent } = await import(${JSON.stringify(new URL("../../dist/store/agent.js", import.meta.url).href)})
    const { openSource } = await import(${JSON.stringify(new URL("../../dist/store/generation.js", import.meta.url).href)})
    const source = openSource(${JSON.stringify(dir)})
    process.setgroups([]); process.setgid(${OWNER}); process.setuid(${OWNER})
    try { readAgent(source, "coder") } catch (e) { console.log(e.code, e.message) }`
  const said = await runProgram([process.execPath, "--input-type=module", "-e", script])
  t.equal(said.stdout, `EACCES agent/coder.d/mount: cannot be read by uid ${OWNER}: correct its mode or owner\n`)
})

t.test("a log that is a fifo does not hold the runtime, and nothing is written into it", async t => {
  const dir = makeSource()
  const controls = join(dir, "agent/coder.d")
  const lines: string[] = []
  const presence = new Presence(controls, "coder", line => lines.push(line))
  put("fifo", join(controls, "log"))
  presence.append("agent.start", "ready")
  const readerFd = openSync(join(controls, "log"), constants.O_RDONLY | constants.O_NONBLOCK)
  t.teardown(() => closeSync(readerFd))
  presence.append("agent.start", "ready")
  t.strictSame(lines, ["log not written: ENXIO", "log not written: EINVAL"])
  rmSync(join(controls, "log"))
  presence.append("agent.start", "ready")
  t.match(JSON.parse(readFileSync(join(controls, "log"), "utf8")), { type: "agent.start", agent: "coder" })
})

/** The `tools` that a program of the reference agents asks with, whatever lies at its control. */
async function askedTools(t: Test, place: (path: string) => void): Promise<string[]> {
  const root = makePlace()
  mkdirSync(join(root, "agent/coder.d"), { recursive: true })
  place(join(root, "agent/coder.d/tools"))
  const controlSocket = join(root, "c.sock")
  let asked: { tools: string[] } | undefined
  const server = createServer(socket =>
    socket.on("data", data => {
      asked = JSON.parse(data.toString())
      socket.end('{"type":"end","status":"ok"}\n')
    }),
  )
  await new Promise<void>(resolve => server.listen(controlSocket, resolve))
  const guest = new Guest({ agent: "coder", session: "s", root, controlSocket, print: () => undefined })
  const facts = { run: RUN, step: 0, input: "x", history_messages: "", tool_context: "", observation: null }
  t.equal(await guest.step(formatEnvelope(facts)), false)
  await new Promise(resolve => server.close(resolve))
  return asked!.tools
}

t.test("the reference program reads a plain tools only and takes anything else for absent", async t => {
  t.strictSame(await askedTools(t, path => writeFileSync(path, "fs.read\n")), ["tsh", "fs.read"])
  for (const kind of ["fifo", "socket", "dir", "device"] as const)
    t.strictSame(await askedTools(t, path => put(kind, path)), ["tsh"], kind)
  const link = (path: string) => {
    writeFileSync(`${path}.real`, "fs.read\n")
    symlinkSync("tools.real", path)
  }
  t.strictSame(await askedTools(t, link), ["tsh"], "link")
  t.strictSame(await askedTools(t, path => writeFileSync(path, "a\n".repeat(40_000))), ["tsh"], "too long")
})

t.test("half a surrogate pair is EIO from a program and EINVAL from a client and on the control socket", async t => {
  const program = [
    `{"type":"tool_call","run":"${RUN}","id":"c-1","name":"fs.read","arguments":{"path":"\\udfff"}}`,
    `{"type":"tool_call","run":"${RUN}","id":"c-1","name":"fs.read","arguments":{"\\ud800":1}}`,
    `{"type":"tool_call","run":"${RUN}","id":"c-1","name":"fs.read","arguments":{"args":["\\ud800"]}}`,
    `{"type":"delta","run":"${RUN}","text":"x","more":["\\ud800"]}`,
  ]
  for (const line of program) t.throws(() => parseProgramFrame(Buffer.from(line), RUN), { code: "EIO" }, line)
  const whole = `{"type":"tool_call","run":"${RUN}","id":"c-1","name":"fs.read","arguments":{"path":"\\ud83d\\ude00"}}`
  t.match(parseProgramFrame(Buffer.from(whole), RUN), { arguments: { path: "\u{1f600}" } })
  for (const line of [
    '{"op":"ping","x":{"\\ud800":1}}',
    '{"op":"ping","x":"\\udfff"}',
    '{"op":"status","session":"\\ud800"}',
  ])
    t.throws(() => parseRequest(Buffer.from(line)), { code: "EINVAL" }, line)
  const place = `"request_id":"q-1","agent":"coder","session":"s","run":"${RUN}"`
  const call = `{"type":"tool_call","id":"c-1","name":"fs.read","arguments":{"path":"\\udfff"}}`
  const asked = `{"op":"model",${place},"messages":[{"role":"assistant","content":[${call}]}]}`
  t.throws(() => parseControlRequest(Buffer.from(asked)), { code: "EINVAL" })
  t.doesNotThrow(() => parseControlRequest(Buffer.from(asked.replace("\\udfff", "x"))))
})
