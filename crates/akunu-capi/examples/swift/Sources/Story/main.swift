import Akunu

let model = try Model()
let session = try Session(model)
try session.generate(try model.encode("Once upon a time"), maxTokens: 100) { text in
    print(text, terminator: "")
    return true
}
print()
