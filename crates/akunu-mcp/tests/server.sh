# A small MCP server for tests: `sh server.sh [KIND]`, which says how it misbehaves.
kind=$1
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
text() { answer "{\"content\":[{\"type\":\"text\",\"text\":\"$1\"}],\"isError\":${2:-false}}"; }
[ "$kind" = quits ] && { echo "no licence was found" >&2; exit 3; }
[ "$kind" = prints ] && echo "Server is ready!"
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case $line in
  *'"initialize"'*)
    [ "$kind" = old ] && { answer '{"protocolVersion":"1999-01-01","capabilities":{"tools":{}}}'; continue; }
    [ "$kind" = silent ] && continue
    [ "$kind" = long ] && { yes xxxxxxxxxxxxxxxx | tr -d '\n' | head -c 17000000; sleep 5; }
    answer '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"t","version":"1"}}' ;;
  *'"tools/list"'*'"second"'*)
    answer '{"tools":[{"name":"fail","description":"Fails.","inputSchema":{"type":"object"}},{"name":"die","inputSchema":{"type":"object"}},{"name":"wait","inputSchema":{"type":"object"}},{"name":"large","inputSchema":{"type":"object"}},{"name":"kinds","inputSchema":{"type":"object"}}]}' ;;
  *'"tools/list"'*)
    # Meanwhile it asks, and notifies.
    printf '{"jsonrpc":"2.0","method":"notifications/message","params":{}}\n{"jsonrpc":"2.0","id":77,"method":"ping"}\n{"jsonrpc":"2.0","id":78,"method":"roots/list"}\n'
    read -r pong; read -r none
    case $pong$none in
    *'"id":77'*'"result":{}'*'-32601'*|*'"result":{}'*'"id":77'*'-32601'*) ;;
    *) echo "no pong" >&2; exit 1 ;;
    esac
    answer '{"tools":[{"name":"clock","description":"Says the time.","inputSchema":{"type":"object","properties":{"zone":{"type":"string"}}}}],"nextCursor":"second"}' ;;
  *'"tools/call"'*'"clock"'*) zone=$(printf '%s' "$line" | sed -n 's/.*"zone":"\([^"]*\)".*/\1/p'); text "Noon in $zone." ;;
  *'"tools/call"'*'"fail"'*) text 'It failed.' true ;;
  *'"tools/call"'*'"die"'*) echo "out of ideas" >&2; exit 1 ;;
  *'"tools/call"'*'"large"'*) text "$(head -c 2000 /dev/zero | tr '\0' x)" ;;
  *'"tools/call"'*'"kinds"'*) answer '{"content":[{"type":"image","data":"AA==","mimeType":"image/png"},{"type":"resource","resource":{"uri":"a:b","text":"in it"}},{"type":"resource_link","uri":"c:d"}]}' ;;
  *'"tools/call"'*'"wait"'*) ;;
  *'"tools/call"'*'"verbose"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"%s"}}\n' "$id" "$(head -c 2000 /dev/zero | tr '\0' x)" ;;
  *'"tools/call"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"Unknown tool"}}\n' "$id" ;;
  esac
done
