// needs: root bwrap
import { chmodSync, chownSync, mkdirSync, renameSync, rmSync, symlinkSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { shortenText } from "../../src/agent/observation.js"
import { Place, RUN } from "../fixture/tool/place.js"
import { OWNER } from "../harness/product.js"

const place = await Place.make()
t.teardown(() => place.remove())

const frame = (fields: object) => `echo '${JSON.stringify({ run: RUN, ...fields })}'`
const start = frame({ type: "start", object: "tool/x" })
const done = frame({ type: "done", status: "ok" })
const say = (text: string) => frame({ type: "message", role: "tool", content: [{ type: "text", text }] })
const native = (...lines: string[]) => `#!/bin/sh\n${lines.join("\n")}\n`
const echo = native("read -r line", 'printf "%s\\n" "$line" >&2', start, say("seen"), done)

t.test("policy.2 lookup takes the first executable regular file of CTX_PATH with the controls beside it", async t => {
  const mine = join(place.source, `home/${OWNER}/tool`)
  place.controls({ path: `/ctx/home/${OWNER}/tool\n/ctx/tool\n` })
  place.allow("x")
  place.tool("x", native(start, say("system"), done))
  place.tool("x", native(start, say("mine"), done), { base: mine, policy: "" })
  chmodSync(join(mine, "x"), 0o644)
  t.equal(
    (await place.call("x", {})).result.content,
    "system",
    "a file without execute bit is skipped, and its controls with it",
  )
  rmSync(join(mine, "x"))
  symlinkSync(join(place.source, "tool/x"), join(mine, "x"))
  t.equal((await place.call("x", {})).result.content, "system", "a link is skipped")
  rmSync(join(mine, "x"))
  place.tool("x", native(start, say("mine"), done), { base: mine })
  t.equal((await place.call("x", {})).result.content, "mine")
  renameSync(join(mine, "x"), join(mine, "y"))
  place.allow("nothing")
  t.equal((await place.call("nothing", {})).error?.code, "ENOENT")
  place.removeControl("path")
})

t.test(
  "policy.12 a native tool that prints text, two done, a foreign run, or nothing with exit 13 is EIO, EIO, EIO, EACCES",
  async t => {
    place.allow("x")
    const cases: [string, string][] = [
      ["ERROR: EIO: output is not JSON lines", native("echo hello")],
      ["ERROR: EIO: frame after done", native(start, done, done)],
      ["ERROR: EIO: frame of another run", native(start, `echo '{"type":"done","run":"ctx-1","status":"ok"}'`)],
      ["ERROR: EACCES: no reason", native("exit 13")],
      ["ERROR: EIO: output ends without done", native(start, say("x"))],
      ["ERROR: EIO: no start", native(done)],
      ["ERROR: EIO: done with an unknown status", native(start, frame({ type: "done", status: "fine" }))],
      ["ERROR: EINVAL: bad words", native("echo bad words >&2", "exit 2")],
      ["ERROR: EHOSTDOWN: no reason", native("exit 69")],
      ["ERROR: EIO: no reason", native("exit 5")],
      ["ERROR: EMSGSIZE: frame of more than 262144 bytes", native(start, "head -c 300000 /dev/zero | tr '\\0' x")],
      [
        "ERROR: ENOENT: docs/plan.md",
        native(
          start,
          frame({ type: "error", code: "ENOENT", message: "docs/plan.md" }),
          frame({ type: "done", status: "error" }),
        ),
      ],
      ["ERROR: exit 3\npart", native(start, say("part"), frame({ type: "done", status: "error", exit: 3 }))],
      ["ERROR: EIO: no reason", native(start, frame({ type: "done", status: "error" }))],
    ]
    for (const [content, program] of cases) {
      place.tool("x", program)
      const { result, error } = await place.call("x", {})
      t.strictSame(result, { status: "error", content, truncated: false }, `${error?.message}`)
    }
    place.tool(
      "x",
      native(
        start,
        frame({ type: "delta", text: "a" }),
        frame({ type: "unknown" }),
        frame({ type: "delta", text: "b" }),
        done,
        "exit 9",
      ),
    )
    const { result, deltas } = await place.call("x", {})
    t.strictSame(
      result,
      { status: "ok", content: "ab", truncated: false },
      "deltas count when there is no message, the exit code does not",
    )
    t.strictSame(deltas, ["a", "b"])
  },
)

t.test("policy.13 input that the schema refuses is EINVAL before any process; defaults are filled in", async t => {
  place.allow("x")
  const schema = {
    type: "object",
    additionalProperties: false,
    required: ["path"],
    properties: { path: { type: "string" }, lines: { type: "integer", default: 2000 } },
  }
  place.tool(
    "x",
    native(
      "read -r line",
      "touch /workspace/ran",
      start,
      `printf '{"type":"message","run":"${RUN}","role":"tool","content":[{"type":"text","text":"%s"}]}\\n' "$(printf %s "$line" | tr '"' "'")"`,
      done,
    ),
    { schema },
  )
  for (const args of [{ path: 1 }, { path: "a", more: 1 }, {}, { path: "a", lines: "3" }]) {
    const { error, held } = await place.call("x", args)
    t.equal(error?.code, "EINVAL", JSON.stringify(args))
    t.equal(held, undefined)
  }
  t.equal((await place.call("x", { path: "a" })).result.content, "{'path':'a','lines':2000}")
})

t.test(
  "policy.11 of 3 MiB of output 1 MiB is kept, the process ends normally, and the observation has head, marker and tail",
  async t => {
    place.allow("x")
    place.tool("x", "#!/bin/sh\nhead -c 3145728 /dev/zero | tr '\\0' x && touch /workspace/to-the-end\n")
    const { result } = await place.call("x", { args: ["a"] })
    t.equal(result.status, "ok")
    t.equal(result.content.length, 1_048_576)
    t.equal(result.truncated, true)
    const { text, isShortened } = shortenText(result.content)
    t.equal(text, `${"x".repeat(12_000)}\n[... 1032576 bytes omitted ...]\n${"x".repeat(4_000)}`)
    t.equal(isShortened, true)
    t.equal(await place.sh("ls /workspace/to-the-end"), "/workspace/to-the-end\n")
  },
)

t.test("in cli mode stdout and stderr are one pipe, stdin is empty, and the exit says how it went", async t => {
  place.allow("x")
  place.tool("x", '#!/bin/sh\necho "$@"; echo err >&2; cat; echo "$CTX_TOOL_MODE"; exit "$1"\n')
  t.strictSame((await place.call("x", { args: ["0", "a b"] })).result, {
    status: "ok",
    content: "0 a b\nerr\ncli\n",
    truncated: false,
  })
  t.equal((await place.call("x", { args: ["3"] })).result.content, "ERROR: exit 3\n3\nerr\ncli\n")
  place.tool("x", "#!/bin/sh\nprintf 'a\\377b'; kill -KILL $$\n")
  t.equal((await place.call("x", { args: ["0"] })).result.content, "ERROR: signal SIGKILL\na\ufffdb")
  place.tool("x", '#!/bin/sh\necho "$CTX_TOOL_MODE" "$@"; cat\n', {
    cap: "text\nraw\n",
    schema: {
      type: "object",
      properties: { args: { type: "array", items: { type: "string" } }, stdin: { type: "string" } },
    },
  })
  t.equal((await place.call("x", { args: ["1", "2"], stdin: "in" })).result.content, "raw 1 2\nin")
  place.tool("x", echo)
  t.equal(
    (await place.call("x", { args: ["{}"] })).result.content,
    "seen",
    "one argument that begins with { is JSON input",
  )
})

t.test("security.2 (per call, no run) a call needs both policies, and a change holds at once", async t => {
  place.allow("x")
  place.tool("x", echo, { policy: "allow other_t tool:x execute\n" })
  t.equal((await place.call("x", {})).error?.code, "EACCES")
  place.tool("x", echo)
  t.equal((await place.call("x", {})).result.content, "seen")
  place.controls({ policy: "" })
  t.equal((await place.call("x", {})).error?.code, "EACCES")
})

t.test(
  "security.4 (per call, no run) a tool that is not declared is EACCES although both policies allow it",
  async t => {
    place.allow("x")
    place.controls({ tools: "" })
    t.equal((await place.call("x", {})).error?.code, "EACCES")
  },
)

t.test(
  "security.5 (link, execute bits and foreign file only) a tool that is no executable of this identity's is refused",
  async t => {
    place.allow("x")
    const path = place.tool("x", echo)
    chmodSync(path, 0o644)
    t.equal((await place.call("x", {})).error?.code, "ENOENT", "no execute bit")
    chmodSync(path, 0o700)
    t.equal((await place.call("x", {})).error?.code, "EACCES", "mode 0700 of another uid")
    rmSync(path)
    symlinkSync("/bin/true", path)
    t.equal((await place.call("x", {})).error?.code, "ENOENT", "a link")
    rmSync(path)
    mkdirSync(path)
    t.equal((await place.call("x", {})).error?.code, "ENOENT", "a directory")
    rmSync(path, { recursive: true })
    place.tool("x", echo)
    chmodSync(path, 0o700)
    chownSync(path, OWNER, OWNER)
    t.equal((await place.call("x", {})).result?.content, "seen", "mode 0700 of the agent's uid")
  },
)

t.test("security.6 (without approval) policy is asked before the schema", async t => {
  place.allow("x")
  const schema = { type: "object", required: ["path"] }
  place.tool("x", echo, { schema, policy: "" })
  t.equal((await place.call("x", {})).error?.code, "EACCES")
  place.tool("x", echo, { schema })
  t.equal((await place.call("x", {})).error?.code, "EINVAL")
  t.equal((await place.call("x", { path: "a" }, { interpreter: true })).result.content, "seen")
  t.equal(
    (await place.call("x", {}, { interpreter: false })).error?.code,
    "EACCES",
    "the interpreter before the schema",
  )
})

t.test("a tool with malformed controls or a schema outside the dialect is EINVAL", async t => {
  place.allow("x")
  for (const more of [
    { cap: "fly\n" },
    { timeout: "0\n" },
    { timeout: "3601\n" },
    { schema: { type: "string" } },
    { schema: { type: "object", $ref: "http://x/y" } },
    { schema: { type: "object", $dynamicRef: "#a" } },
    { schema: { type: "object", properties: 1 } },
  ]) {
    place.tool("x", echo, more)
    t.equal((await place.call("x", {})).error?.code, "EINVAL", JSON.stringify(more))
    rmSync(join(place.source, "tool/x.d"), { recursive: true })
  }
})
