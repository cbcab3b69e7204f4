// needs: root
import { once } from "node:events"
import {
  appendFileSync,
  mkdirSync,
  readdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from "node:fs"
import { createServer } from "node:net"
import { join } from "node:path"
import { test } from "tap"
import { listAgents, readAgent } from "../../src/store/agent.js"
import { findModel, listModels, parseAliasTarget, resolveModel } from "../../src/store/catalogue.js"
import { openSource, type Source } from "../../src/store/generation.js"
import { formatMetadata } from "../../src/store/metadata.js"
import { listTools, readTool } from "../../src/store/tool.js"
import { makeStore, OWNER, updateHere } from "../fixture/store/kit.js"

async function makeSource(): Promise<Source> {
  const store = await makeStore()
  return openSource(await updateHere(store))
}

test("a reference agent is read with every control of section 6.1", async t => {
  const source = await makeSource()
  t.strictSame(listAgents(source), ["coder", "reviewer", "worker"])
  const agent = readAgent(source, "coder")
  t.match(agent, {
    name: "coder",
    owner: OWNER,
    uid: OWNER,
    gid: OWNER,
    groups: [],
    label: "user_u:agent_r:coder_t:s0",
    subject: "coder_t",
    iso: "shared",
    life: "owned",
    root: `/ctx/home/${OWNER}/agent/coder/root`,
    cwd: "/workspace",
    path: ["/ctx/tool", `/ctx/home/${OWNER}/tool`],
    model: "main",
    abi: "sdk-envelope-v1",
    approval: "auto",
    tools: ["fs.read", "fs.list"],
    window: "auto",
    templateText: "",
    executable: `${source.dir}/agent/coder`,
    controlDir: `${source.dir}/agent/coder.d`,
  })
  t.equal(agent.parent, undefined)
  t.strictSame([...agent.env], [["CTX_AGENT_STEPS", "64"]])
  t.equal(agent.mount.toString(), "/ctx\t/ctx\tro\trbind,nosuid,nodev\n")
  t.equal(
    agent.policy?.toString(),
    "allow coder_t tool:fs.read execute\nallow coder_t tool:fs.list execute\nallow coder_t model:main use\nallow coder_t model:helper use\n",
  )
  t.equal(readAgent(source, "worker").model, "helper")
})

test("runtime.1 (reader only) a malformed control is EINVAL and the text names it", async t => {
  const source = await makeSource()
  const dir = join(source.dir, "agent/coder.d")
  const bad: [string, string][] = [
    ["abi", "argv-v1\n"],
    ["abi", "sdk-envelope-v1"],
    ["owner", "01\n"],
    ["owner", "root\n"],
    ["uid", "7\n"],
    ["gid", "-1\n"],
    ["groups", "1\n01\n"],
    ["label", "user_u:agent_r:coder-t:s0\n"],
    ["label", "user_u:agent_r:coder_t\n"],
    ["iso", "none\n"],
    ["life", "detached\n"],
    ["parent", "coder\n"],
    ["parent", "agent:a run:\n"],
    ["root", "relative\n"],
    ["cwd", "/a/../b\n"],
    ["env", "LD_PRELOAD=x\n"],
    ["env", "CTX_AGENT_STEPS=0\n"],
    ["env", "CTX_AGENT_STEPS=064\n"],
    ["env", "CTX_OTHER=1\n"],
    ["env", "HOME=/x\n"],
    ["env", "A=1\nA=2\n"],
    ["env", `${"K".repeat(65)}=1\n`],
    ["path", "/ctx/tool:/x\n"],
    ["path", "tool\n"],
    ["model", "small\n"],
    ["model", "main\n\n"],
    ["approval", "never\n"],
    ["window", "08\n"],
    ["window", "4294967296\n"],
    ["system.md", "\ufeffhello\n"],
    ["prompt.template.md", "a\0b\n"],
  ]
  for (const [control, text] of bad) {
    const path = join(dir, control)
    const before = readAgent(source, "coder")
    const old = readdirSync(dir).includes(control)
    const { readFileSync } = await import("node:fs")
    const good = old ? readFileSync(path) : undefined
    writeFileSync(path, text)
    const named = control === "uid" ? "iso" : control
    t.throws(
      () => readAgent(source, "coder"),
      { code: "EINVAL", message: new RegExp(`^agent/coder\\.d/${named.replaceAll(".", "\\.")}\\b`) },
      `${control} ${JSON.stringify(text.slice(0, 30))}`,
    )
    if (good) writeFileSync(path, good)
    else unlinkSync(path)
    t.strictSame(readAgent(source, "coder"), before)
  }
})

test("a control that is a link, a directory or too long is EINVAL, a missing required one ENOENT", async t => {
  const source = await makeSource()
  const path = join(source.dir, "agent/coder.d/cwd")
  unlinkSync(path)
  t.equal(readAgent(source, "coder").cwd, "/workspace", "absent means the default")
  symlinkSync("root", path)
  t.throws(() => readAgent(source, "coder"), { code: "EINVAL", message: "agent/coder.d/cwd: is a symbolic link" })
  unlinkSync(path)
  mkdirSync(path)
  t.throws(() => readAgent(source, "coder"), { code: "EINVAL", message: "agent/coder.d/cwd: is not a regular file" })
  rmSync(path, { recursive: true })
  writeFileSync(path, `/${"a".repeat(65536)}\n`)
  t.throws(() => readAgent(source, "coder"), { code: "EINVAL" })
  unlinkSync(path)
  for (const control of ["owner", "label", "model"]) {
    const store = await makeSource()
    unlinkSync(join(store.dir, `agent/coder.d/${control}`))
    t.throws(() => readAgent(store, "coder"), { code: "ENOENT", message: `agent/coder.d/${control}: is missing` })
  }
  t.throws(() => readAgent(source, "ghost"), { code: "ENOENT" })
  t.throws(() => readAgent(source, "../coder"), { code: "EINVAL" })
})

test("runtime.1 (reader only) a malformed tools counts as empty with its fault, an unreadable policy denies", async t => {
  const source = await makeSource()
  const dir = join(source.dir, "agent/coder.d")
  for (const text of ["tsh\n", "fs.read\nfs.read\n", "fs.read", " fs.read\n", "\n", `${"a.b\n".repeat(65)}`]) {
    writeFileSync(join(dir, "tools"), text)
    const agent = readAgent(source, "coder")
    t.strictSame(agent.tools, [], JSON.stringify(text.slice(0, 20)))
    t.match(agent.toolsFault, { code: "EINVAL", message: /^agent\/coder\.d\/tools/ })
  }
  writeFileSync(join(dir, "tools"), "")
  t.match(readAgent(source, "coder"), { tools: [], toolsFault: undefined })
  unlinkSync(join(dir, "policy"))
  t.equal(readAgent(source, "coder").policy, undefined)
  symlinkSync("/dev/null", join(dir, "policy"))
  t.equal(readAgent(source, "coder").policy, undefined)
})

test("a reference tool is read with its schema, and one without executable says so", async t => {
  const source = await makeSource()
  t.strictSame(listTools(source), ["fs.list", "fs.read"])
  const tool = readTool(source, "fs.read")
  t.match(tool, { name: "fs.read", description: "Read a text file", cap: ["text", "read"], timeoutS: 120 })
  t.strictSame(tool.schema, {
    type: "object",
    additionalProperties: false,
    required: ["path"],
    properties: {
      path: { type: "string", minLength: 1, maxLength: 4096 },
      line: { type: "integer", minimum: 1, default: 1 },
      lines: { type: "integer", minimum: 1, maximum: 5000, default: 2000 },
    },
  })
  t.match(tool.program, { uid: 0, mode: 0o555 })
  unlinkSync(join(source.dir, "tool/fs.read"))
  t.equal(readTool(source, "fs.read").program, undefined)
  symlinkSync("/bin/true", join(source.dir, "tool/fs.read"))
  t.equal(readTool(source, "fs.read").program, undefined, "a link is no program")
  const dir = join(source.dir, "tool/fs.list.d")
  for (const [control, text] of [
    ["name", "fs.read\n"],
    ["cap", "text\nroot\n"],
    ["schema", '{"type":"array"}'],
    ["schema", "{"],
    ["timeout", "0\n"],
    ["timeout", "3601\n"],
  ] as const) {
    const other = await makeSource()
    writeFileSync(join(other.dir, "tool/fs.list.d", control), text)
    t.throws(() => readTool(other, "fs.list"), { code: "EINVAL" }, `${control} ${text}`)
  }
  appendFileSync(join(dir, "timeout"), "9\n")
  t.equal(readTool(source, "fs.list").timeoutS, 9)
  const server = createServer().listen(join(source.dir, "tool/fs.list.d/sock"))
  await once(server, "listening")
  renameSync(join(source.dir, "tool/fs.list.d/sock"), join(dir, "cap"))
  t.throws(() => readTool(source, "fs.list"), {
    code: "EINVAL",
    message: "tool/fs.list.d/cap: is not a regular file",
  })
  server.close()
  t.throws(() => readTool(source, "none"), { code: "ENOENT" })
})

test("the reference models have the ten files of model-abi 2 and 10", async t => {
  const source = await makeSource()
  const models = listModels(source)
  t.strictSame(
    models.map(({ provider, model }) => `${provider}/${model}`),
    ["debug/echo", "debug/guide", "debug/script"],
  )
  t.strictSame(models[0]?.controls, {
    id: "debug/echo\n",
    driver: "debug\n",
    cap: "chat\nstream\nsession\n",
    effort: "auto\n",
    default: "",
    fallback: "",
    limit: "unknown\n",
    session: "socket\n",
    status: "ready\n",
    log: "",
  })
  t.equal(findModel(source, "debug/guide")?.controls.cap, "chat\nstream\ntool_call_syntax\n")
  t.equal(
    models[2]?.metadata,
    "#!/usr/bin/cortexfs-object-runner\nid=debug/script\nname=script\ndescription=Play a JSON script\ntype=model\ncreated_at=0\nowned_by=debug\ncontext_length=unknown\n",
  )
})

test("an alias is looked up in the owner's home first, and one that leads nowhere is ENOENT", async t => {
  const source = await makeSource()
  t.equal(resolveModel(source, OWNER, "main"), "debug/guide")
  t.equal(resolveModel(source, OWNER, "debug/echo"), "debug/echo")
  const own = join(source.dataRoot, `home/${OWNER}/model/main`)
  symlinkSync("/home/ann/ctx/model/debug/script", own)
  t.equal(resolveModel(source, OWNER, "main"), "debug/script")
  t.equal(resolveModel(source, OWNER + 1, "main"), "debug/guide", "another user's agents do not see it")
  for (const text of ["/ctx/model/acme/none", "debug/echo", "/ctx/model/debug/echo/x", "/ctx/tool/debug/echo"]) {
    unlinkSync(own)
    symlinkSync(text, own)
    t.throws(() => resolveModel(source, OWNER, "main"), { code: "ENOENT" }, text)
  }
  unlinkSync(own)
  writeFileSync(own, "debug/echo\n")
  t.throws(() => resolveModel(source, OWNER, "main"), { code: "ENOENT" }, "a plain file")
  t.throws(() => resolveModel(source, OWNER, "small"), { code: "EINVAL" })
  t.throws(() => resolveModel(source, OWNER, "acme/none"), { code: "ENOENT" })
  t.equal(parseAliasTarget("/model/a/b"), "a/b")
})

test("a metadata value is one line of at most 1024 bytes, cut at a character", t => {
  const text = formatMetadata("tool", { id: "x", description: `a\nb\x7f${"é".repeat(600)}`, cap: Buffer.from([0xff]) })
  const lines = text.split("\n")
  t.equal(lines[0], "#!/usr/bin/cortexfs-object-runner")
  t.match(lines[3], /^description=a b é+$/)
  t.equal(Buffer.byteLength(lines[3]!.slice("description=".length)), 1024)
  t.strictSame(lines.slice(4), ["type=tool", "owned_by=", "cap=\ufffd", ""])
  t.end()
})
