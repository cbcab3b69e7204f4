// `.tshrc` is data.
import t from "tap"
import { parseCtxPath, parseTshrc } from "../../src/abi/tshrc.js"

const EINVAL = { code: "EINVAL" }
const parse = (text: string) => parseTshrc(Buffer.from(text))

t.test("root.17 an export, an expansion and a second CTX_PATH line are EINVAL", async t => {
  t.throws(() => parse("export CTX_PATH=/x\n"), EINVAL)
  t.throws(() => parse("CTX_PATH=$HOME/x\n"), EINVAL)
  t.throws(() => parse("CTX_PATH=/x\nCTX_PATH=/y\n"), EINVAL)
  t.throws(() => parse("CTX_PATH=/x\n# c\nCTX_PATH=/x\n"), EINVAL)
})

t.test("root.17 comments and blank lines are accepted and a dollar sign stays literal", async t => {
  t.same(parse("# tools\n\n  \nCTX_PATH=/a:/b\n# end\n"), ["/a", "/b"])
  t.same(parse("CTX_PATH=/a/$HOME\n"), ["/a/$HOME"])
  t.equal(parse(""), undefined)
  t.equal(parse("# only a comment\n"), undefined)
})

t.test("everything else in a .tshrc is EINVAL and names the line", async t => {
  for (const bad of [
    "CTX_PATH=/a",
    "CTX_PATH=\n",
    "CTX_PATH=/a:\n",
    "CTX_PATH=/a::/b\n",
    "CTX_PATH=a\n",
    " CTX_PATH=/a\n",
    "PATH=/a\n",
  ]) {
    t.throws(() => parse(bad), EINVAL, JSON.stringify(bad))
  }
  for (const bad of ["CTX_PATH=/a/../b\n", "CTX_PATH=/a/\n", "alias x=y\n", "CTX_PATH=/a \n# \0\n"])
    t.throws(() => parse(bad), EINVAL)
  t.throws(() => parse("# x\nset -e\n"), { message: /^\.tshrc line 2: / })
  t.throws(() => parseTshrc(Buffer.from([0x23, 0xff, 0x0a])), EINVAL)
})

t.test("CTX_PATH is a colon list of absolute directories", async t => {
  t.same(parseCtxPath("/ctx/tool:/ctx/home/1000/tool"), ["/ctx/tool", "/ctx/home/1000/tool"])
  for (const bad of ["", ":", "/a:", "tool"]) t.throws(() => parseCtxPath(bad), EINVAL)
})
