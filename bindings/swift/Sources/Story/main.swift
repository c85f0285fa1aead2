import Akunu

let session = try Session(Model())
for try await piece in try session.generate("Once upon a time", Limits(maxTokens: 100)) {
    print(piece.text, terminator: "")
}
print()
