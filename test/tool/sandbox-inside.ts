// needs: root bwrap
import { readFileSync } from "node:fs"
import { createServer } from "node:net"
import { join } from "node:path"
import t from "tap"
import { Place } from "../fixture/tool/place.js"
import { OWNER } from "../harness/product.js"

const place = await Place.make()
t.teardown(() => place.remove())

/** `touch` of each path: `ok` or the text of the errno. */
const touch = (...paths: string[]) =>
  paths.map(path => `touch ${path} 2>/dev/null && echo ok || { touch ${path} 2>&1 | sed 's/.*: //'; }`).join("\n")

t.test(
  "security.10 a payload is the agent's uid, without capability, behind a filter, in namespaces of its own",
  async t => {
    const script =
      "id -u; grep -E '^(CapEff|CapPrm|CapInh|CapBnd|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status; uname -n; echo /proc/[0-9]* | wc -w"
    for (const uid of [OWNER, 0]) {
      const lines = (await place.sh(script, {}, { uid })).trim().split("\n")
      t.equal(lines[0], String(OWNER))
      for (const set of ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"])
        t.ok(lines.includes(`${set}:\t0000000000000000`), set)
      t.ok(lines.includes("NoNewPrivs:\t1"))
      t.ok(lines.includes("Seccomp:\t2"))
      t.equal(lines.at(-2), "cortexfs")
      t.ok(Number(lines.at(-1)) <= 5, "only the sandbox's own processes")
    }
    place.controls({ iso: "userns\n" })
    t.equal(await place.sh("id -u; id -g"), "1000\n1000\n")
    place.removeControl("iso")
  },
)

t.test("a payload may open 1024 descriptors, dumps no core, and has 512 MiB in /tmp", async t => {
  t.equal(await place.sh("ulimit -n; ulimit -Hn; ulimit -c; ulimit -Hc"), "1024\n1024\n0\n0\n")
  t.equal(await place.sh("df -B1 --output=size /tmp | tail -1; stat -c %a /tmp"), `${512 * 1024 * 1024}\n1777\n`)
})

t.test("security.12 only the home, the workspace and /tmp can be written", async t => {
  const refused = await place.sh(touch("/x", "/usr/x", "/etc/x", "/dev/x", "/run/x", "/run/cortexfs/x", "/ctx/x"))
  t.equal(refused, "Read-only file system\n".repeat(7))
  t.equal(await place.sh(touch("/home/agent/x", "/workspace/x", "/tmp/x")), "ok\n".repeat(3))
  t.equal(readFileSync(join(place.home, "data/x"), "utf8"), "", "without a mount line /workspace is the agent's data")
})

t.test("nothing can be put into /dev, its devices serve, and /dev/shm holds 64 MiB", async t => {
  t.equal(await place.sh(touch("/dev/x", "/dev/pts/../y")), "Read-only file system\n".repeat(2))
  t.equal(await place.sh("echo x > /dev/null && head -c 3 /dev/zero | wc -c"), "3\n")
  t.equal(await place.sh("df -B1 --output=size /dev/shm | tail -1 | tr -d ' '"), `${64 * 1024 * 1024}\n`)
  t.equal(
    await place.sh("head -c 70000000 /dev/zero > /dev/shm/x 2>/dev/null; wc -c < /dev/shm/x"),
    `${64 * 1024 * 1024}\n`,
  )
  t.equal(await place.sh(`python3 -c 'import pty; print(len(pty.openpty()))'`), "2\n", "a terminal can be opened")
  t.equal(
    await place.sh("ls /dev | tr '\\n' ' '"),
    "core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero ",
  )
})

t.test("security.13 history can be read and neither changed nor moved", async t => {
  const sessions = "/home/agent/session"
  const errors = await place.sh(
    [
      `echo x 2>&1 >> ${sessions}/default/messages.jsonl`,
      `rm ${sessions}/default/messages.jsonl`,
      `mv ${sessions}/default ${sessions}/d2`,
      `chmod 777 ${sessions}/default`,
      `mv ${sessions} /home/agent/s2`,
    ]
      .map(line => `(${line}) 2>&1 | sed 's/.*: //'`)
      .join("\n"),
  )
  t.equal(errors, `${"Read-only file system\n".repeat(4)}Device or resource busy\n`)
  t.equal(await place.sh(`cat ${sessions}/default/messages.jsonl`), "{}\n")
})

t.test("security.14 (without start --git rw) .git of a workspace, directory or file, cannot be written", async t => {
  const workspaceDir = place.ownDir("ws-dir")
  place.own(place.write(join(workspaceDir, ".git/config"), "a\n"), join(workspaceDir, ".git"))
  const gone = "(rm -rf /workspace/.git) 2>&1 | sed 's/.*: //' | sort -u"
  t.equal(
    await place.sh(`${touch("/workspace/.git/config", "/workspace/f")}\n${gone}`, { workspaceDir }),
    "Read-only file system\nok\nRead-only file system\n",
  )
  const other = place.ownDir("ws-file")
  place.own(place.write(join(other, ".git"), "gitdir: /x\n"))
  t.equal(
    await place.sh(
      `${touch("/workspace/.git", "/workspace/f")}\nmv /workspace/.git /workspace/g 2>&1 | sed 's/.*: //'`,
      { workspaceDir: other },
    ),
    "Read-only file system\nok\nDevice or resource busy\n",
  )
})

t.test("security.15 the root holds the listed entries, mount targets and prefixes, and nothing else", async t => {
  const data = place.ownDir("extra")
  place.controls({ mount: `${data}\t/input\tro\t-\n` })
  const names = (await place.sh("ls /")).trim().split("\n")
  const listed = "artifact bin ctx dev etc home input lib lib64 proc run sbin tmp usr workspace".split(" ")
  t.strictSame(
    names.filter(name => !listed.includes(name)),
    [],
  )
  for (const name of ["ctx", "home", "input", "workspace"]) t.ok(names.includes(name))
  t.equal(await place.sh(touch("/input/x")), "Read-only file system\n")
  place.removeControl("mount")
  t.equal(await place.sh("ls /home; ls -A /run/cortexfs"), "agent\nenter\npayload\n")
  const etc = (await place.sh("ls /etc")).trim().split("\n")
  for (const name of ["shadow", "profile", "profile.d", "bash.bashrc", "resolv.conf", "cortexfs"])
    t.notOk(etc.includes(name), name)
})

t.test("security.18 the network is a loopback of the sandbox's own", async t => {
  const server = createServer(socket => socket.end()).listen(0, "127.0.0.1")
  await new Promise(resolve => server.once("listening", resolve))
  const { port } = server.address() as { port: number }
  const program = `#!${process.execPath}
const net = require("node:net")
const dial = (host, port) => new Promise(done => net.connect(port, host, () => done("ok")).on("error", e => done(e.code)))
const main = async () => {
  console.log(await dial("127.0.0.1", ${port}), await dial("192.0.2.1", 80), Object.keys(require("node:os").networkInterfaces()).join())
  const own = net.createServer(s => s.end()).listen(0, "127.0.0.1", async () => { console.log(await dial("127.0.0.1", own.address().port)); own.close() })
}
main()
`
  const { stdout, stderr } = await place.inside(program)
  t.equal(stdout, "ECONNREFUSED ENETUNREACH lo\nok\n", stderr)
  server.close()
})

t.test("security.20 the environment of a tool holds the names of section 8 and the agent's own pairs", async t => {
  place.controls({ env: "FOO=bar\nCTX_AGENT_STEPS=9\n" })
  // The env program itself is the payload: a shell would add names.
  const secrets = { AWS_SECRET_ACCESS_KEY: "s3cr3t", SSH_AUTH_SOCK: "/tmp/agent", PATH: "/usr/bin", NODE_OPTIONS: "" }
  const { stdout } = await place.inside(
    readFileSync("/usr/bin/env"),
    {},
    { env: { ...secrets, LD_PRELOAD: "/usr/lib/nothing.so" } },
  )
  t.strictSame(
    Object.fromEntries(
      stdout
        .trim()
        .split("\n")
        .map(line => line.split(/=(.*)/s).slice(0, 2)),
    ),
    {
      CTX_ROOT: "/ctx",
      CTX_HOME: `/ctx/home/${OWNER}`,
      CTX_PATH: `/ctx/tool:/ctx/home/${OWNER}/tool`,
      CTX_AGENT: "probe",
      CTX_AGENT_SUBJECT: "probe_t",
      HOME: "/home/agent",
      USER: "probe",
      LOGNAME: "probe",
      PATH: "/usr/bin:/bin",
      LANG: "C.UTF-8",
      SHELL: "/usr/bin/bash",
      TERM: "xterm-256color",
      CTX_SESSION: "default",
      CTX_RUN_ID: "ctx-0123456789abcdef0123456789abcdef",
      CTX_TOOL_MODE: "cli",
      CTX_AUTHORIZED_OBJECT: "tool/probe",
      CTX_CONTROL_SOCKET: "/run/cortexfs/control.sock",
      FOO: "bar",
    },
  )
  const step = await place.inside(readFileSync("/usr/bin/env"), {
    payload: { kind: "step", step: 2, steps: 9, window: 4096 },
  })
  const names = step.stdout.split("\n").filter(line => /^CTX_(AGENT_[^S]|AGENT_STEP|CONTEXT|TOOL|AUTH)/.test(line))
  t.strictSame(names.sort(), [
    "CTX_AGENT_LAUNCH=sdk-envelope-v1",
    "CTX_AGENT_STEP=2",
    "CTX_AGENT_STEPS=9",
    "CTX_AGENT_WARM=1",
    "CTX_CONTEXT_WINDOW_CHARS=16384",
    "CTX_CONTEXT_WINDOW_TOKENS=4096",
  ])
  place.removeControl("env")
})

t.test(
  "security.21 (definition and sandbox only) names that are not the agent's make env EINVAL; an ordinary one is seen inside",
  async t => {
    const bad = [
      "HOME=/x\n",
      "CTX_FOO=1\n",
      "LD_PRELOAD=x\n",
      `${"K".repeat(65)}=1\n`,
      Array.from({ length: 65 }, (_, i) => `K${i}=1\n`).join(""),
    ]
    for (const env of bad) {
      place.controls({ env })
      const { error } = await place.inside("#!/bin/sh\n")
      t.equal(error?.code, "EINVAL", env.slice(0, 20))
      t.match(error?.message, /env/)
    }
    place.controls({ env: "FOO=bar\n" })
    t.equal(await place.sh('echo "$FOO"'), "bar\n")
    place.removeControl("env")
  },
)

t.test("security.26 (no path to an agent socket) no socket but the run's control socket is in /run", async t => {
  const controlSocket = join(place.ownDir("sockets"), "control.sock")
  const program = `#!${process.execPath}
const net = require("node:net")
const dial = path => new Promise(done => { let text = ""; net.connect(path).on("data", c => text += c).on("end", () => done(text.trim())).on("error", e => done(e.code)) })
const main = async () => console.log(await dial("/run/cortexfs/agent/probe.sock"), await dial("/ctx/agent/probe.sock"), await dial(process.env.CTX_CONTROL_SOCKET))
main()
`
  const { stdout, stderr } = await place.inside(program, { controlSocket })
  t.equal(stdout, "ENOENT ENOENT hello\n", stderr)
})
