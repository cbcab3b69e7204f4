{
  "variables": {
    "openssl_fips": "",
    "warnings": ["-Wall", "-Wextra", "-Wno-unused-parameter"]
  },
  "targets": [
    {
      "target_name": "cortexfs",
      "sources": [
        "native/addon.cc",
        "<!@(node -p \"['sys','fuse'].flatMap(d=>{try{return require('fs').readdirSync('native/'+d).filter(f=>f.endsWith('.cc')).sort().map(f=>'native/'+d+'/'+f)}catch{return []}}).join(' ')\")"
      ],
      "include_dirs": ["<!@(node -p \"require('node-addon-api').include\")", "native"],
      "defines": ["NAPI_VERSION=9", "NAPI_DISABLE_CPP_EXCEPTIONS", "NODE_ADDON_API_DISABLE_DEPRECATED", "_FILE_OFFSET_BITS=64"],
      "cflags": ["<@(warnings)", "-fvisibility=hidden"],
      "cflags_cc": ["-std=c++20", "-fno-exceptions", "-fno-rtti", "-fvisibility-inlines-hidden"],
      "cflags_cc!": ["-std=gnu++17", "-std=gnu++14", "-std=gnu++20"],
      "libraries": ["-lpthread"]
    },
    {
      "target_name": "cortexfs-enter",
      "type": "executable",
      "sources": [
        "<!@(node -p \"require('fs').readdirSync('native/enter').filter(f=>f.endsWith('.cc')).sort().map(f=>'native/enter/'+f).join(' ')\")"
      ],
      "cflags": ["<@(warnings)", "-fPIE"],
      "cflags_cc": ["-std=c++20", "-fno-exceptions", "-fno-rtti"],
      "cflags_cc!": ["-std=gnu++17", "-std=gnu++14", "-std=gnu++20"],
      "ldflags": ["-static-pie", "-Wl,--gc-sections"]
    }
  ]
}
