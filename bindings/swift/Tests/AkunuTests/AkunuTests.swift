import XCTest

@testable import Akunu

/// With the model in the library.
final class AkunuTests: XCTestCase {
    static let prompt = "Once upon a time"

    func model(batch: Bool = false, sessions: UInt32 = 1) throws -> Model {
        var options = Model.Options()
        options.device = "cpu"
        options.context = 256
        options.sessions = sessions
        options.batch = batch
        return try Model(options: options)
    }

    func testPropertiesAndTokens() throws {
        let model = try model()
        XCTAssertEqual(try model.name, "embedded")
        XCTAssertEqual(try model.config.context, 256)
        XCTAssertTrue(try model.device.hasPrefix("cpu"))
        let tokens = try model.encode("a little fox")
        XCTAssertGreaterThan(tokens.count, 1)
        XCTAssertEqual(try model.decode(tokens).trimmingCharacters(in: .whitespaces), "a little fox")
        XCTAssertFalse(version.isEmpty)
    }

    func testPiecesAreTheWholeText() async throws {
        let session = try Session(model())
        let generation = try session.generate(Self.prompt, Limits(maxTokens: 24))
        var (text, tokens) = ("", [UInt32]())
        for try await piece in generation {
            text += piece.text
            tokens += piece.tokens
        }
        XCTAssertEqual(tokens.count, 24)
        XCTAssertEqual(try session.model.decode(tokens), text)
        let stats = try XCTUnwrap(generation.stats)
        XCTAssertEqual(stats.finish, .maxTokens)
        XCTAssertEqual(stats.generatedTokens, 24)
        // Again from the cache, and in two halves.
        try session.truncate(0)
        let first = try await session.generate(Self.prompt, Limits(maxTokens: 12)).text()
        let second = try await session.proceed([], Limits(maxTokens: 12)).text()
        XCTAssertEqual(first + second, text)
    }

    func testLeavingTheLoopStopsTheGeneration() async throws {
        let session = try Session(model())
        var limits = Limits()
        limits.ignoreEnd = true
        for try await _ in try session.generate(Self.prompt, limits) { break }
        // It ended, since the next one gets its turn. Without an end it would fill the context of 256.
        let generation = try session.generate(Self.prompt, Limits(maxTokens: 3))
        for try await _ in generation {}
        XCTAssertEqual(generation.stats?.generatedTokens, 3)
    }

    func testCancellingTheTaskStopsTheGeneration() async throws {
        var options = Model.Options()
        options.device = "cpu"
        options.context = 4000
        let session = try Session(Model(options: options))
        var limits = Limits()
        limits.ignoreEnd = true
        let generation = try session.generate(Self.prompt, limits)
        let pieces = Shared(0)
        let task = Task {
            for try await _ in generation { pieces.with { $0 += 1 } }
        }
        while pieces.with({ $0 }) == 0 { try await Task.sleep(nanoseconds: 1_000_000) }
        task.cancel()
        try await task.value
        // A call for the session returns when the generation has ended, well before the context is full.
        XCTAssertLessThan(try session.tokens.count, 3000)
    }

    func testErrorsAreThrownWithTheirMessages() async throws {
        XCTAssertThrowsError(try Model(path: "/no/such/model.gguf")) { error in
            XCTAssertTrue("\(error)".contains("/no/such/model.gguf"), "\(error)")
            XCTAssertEqual((error as? AkunuError)?.status, -6)
        }
        let model = try model()
        let session = try Session(model)
        XCTAssertThrowsError(try Session(model)) { XCTAssertEqual(($0 as? AkunuError)?.status, -10) }
        XCTAssertThrowsError(try session.set(Sampling(temperature: -1)))
        do {
            for try await _ in session.generate([UInt32](repeating: 5, count: 300)) {}
            XCTFail("no error")
        } catch let error as AkunuError {
            XCTAssertEqual(error.status, -9)
            XCTAssertTrue(error.description.contains("300 tokens"))
        }
    }

    func testFormatsAndLogprobs() async throws {
        let session = try Session(model())
        let schema = Format.jsonSchema("{\"enum\": [\"fox\"]}")
        let fox = try await session.generate(Self.prompt, Limits(maxTokens: 40, format: schema)).text()
        // White space is part of JSON.
        XCTAssertEqual(fox.trimmingCharacters(in: .whitespaces), "\"fox\"")
        let regex = try await session.generate(Self.prompt, Limits(maxTokens: 40, format: .regex("a{3}b"))).text()
        XCTAssertEqual(regex, "aaab")
        var limits = Limits(maxTokens: 6)
        limits.topLogprobs = 2
        for try await piece in try session.generate(Self.prompt, limits) {
            XCTAssertEqual(piece.logprobs.count, piece.tokens.count)
            for (token, row) in zip(piece.tokens, piece.logprobs) {
                XCTAssertEqual(row.count, 3)
                XCTAssertEqual(row[0].token, token)
                XCTAssertEqual(row[0], row[1], "greedy")
                XCTAssertGreaterThanOrEqual(row[1].logprob, row[2].logprob)
            }
        }
    }

    func testSamplersChangeTheText() async throws {
        let session = try Session(model())
        let batch = try model(batch: true)
        func text(_ change: (inout Sampling) -> Void) async throws -> String {
            var sampling = Sampling(temperature: 1.1, seed: 3)
            change(&sampling)
            try session.set(sampling)
            let text = try await session.generate(Self.prompt, Limits(maxTokens: 20)).text()
            let request = try batch.submit(batch.encode(Self.prompt), Limits(maxTokens: 20), sampling: sampling)
            let again = try await request.text()
            XCTAssertEqual(again, text)
            return text
        }
        var texts = [try await text { _ in }]
        texts.append(try await text { $0.topNSigma = 0.5 })
        texts.append(try await text { $0.typicalP = 0.3 })
        texts.append(try await text { $0.xtcProbability = 1; $0.xtcThreshold = 0.01 })
        texts.append(try await text { $0.dynatempRange = 1; $0.dynatempExponent = 3 })
        texts.append(try await text { $0.mirostatTau = 0.5 })
        texts.append(
            try await text {
                $0.temperature = 0
                $0.dryMultiplier = 50
                $0.dryAllowedLength = 1
                $0.dryBreakers = []
            })
        XCTAssertEqual(Set(texts).count, texts.count, "\(texts)")
    }

    func testAChatRemembersItsMessages() async throws {
        let chat = Chat(try Session(model()), system: "You tell stories.")
        let first = try await chat.send("tell me about a \"fox\"", Limits(maxTokens: 20)).answer()
        XCTAssertFalse(first.isEmpty)
        XCTAssertEqual(chat.messages.count, 3)
        XCTAssertTrue(chat.messages[1].contains("fox"))
        XCTAssertTrue(chat.messages[2].contains("\"assistant\""))
        let second = chat.send("and then?", Limits(maxTokens: 20))
        for try await _ in second {}
        XCTAssertEqual(chat.messages.count, 5)
        XCTAssertGreaterThan(try XCTUnwrap(second.stats).reusedTokens, 20)
        let held = try await chat.send("which?", Limits(maxTokens: 20, format: .regex("fox|owl"))).answer()
        XCTAssertTrue(["fox", "owl"].contains(held))
    }

    func testAChatForgetsAMessageWithoutAnAnswer() async throws {
        let chat = Chat(try Session(model()), system: "You tell stories.")
        do {
            _ = try await chat.send("which?", Limits(maxTokens: 20, format: .regex("("))).answer()
            XCTFail("no error")
        } catch {}
        XCTAssertEqual(chat.messages.count, 1)
        _ = try await chat.send("tell me about a fox", Limits(maxTokens: 5)).answer()
        XCTAssertEqual(chat.messages.count, 3)
    }

    func testRequestsOfABatchHaveTheTextsOfSingleOnes() async throws {
        let batch = try model(batch: true, sessions: 3)
        let session = try Session(model())
        XCTAssertThrowsError(try Session(batch)) { XCTAssertTrue("\($0)".contains("batch")) }
        XCTAssertThrowsError(try session.model.submit([5])) { XCTAssertTrue("\($0)".contains("batch")) }
        let prompts = [Self.prompt, "The little fox", "In the forest", "A long day", "Mother said"]
        var expected: [String] = []
        for (seed, prompt) in prompts.enumerated() {
            try session.set(Sampling(temperature: 0.8, seed: UInt64(seed)))
            expected.append(try await session.generate(prompt, Limits(maxTokens: 16)).text())
        }
        let found = try await withThrowingTaskGroup(of: (Int, String).self) { group in
            for (seed, prompt) in prompts.enumerated() {
                let request = try batch.submit(
                    batch.encode(prompt), Limits(maxTokens: 16),
                    sampling: Sampling(temperature: 0.8, seed: UInt64(seed)))
                group.addTask { (seed, try await request.text()) }
            }
            return try await group.reduce(into: [Int: String]()) { $0[$1.0] = $1.1 }
        }
        XCTAssertEqual(prompts.indices.map { found[$0] }, expected)
    }

    func testLoadingReportsProgressAndCanBeCancelled() async throws {
        var options = Model.Options()
        options.device = "cpu"
        let reports = Shared<[(UInt64, UInt64)]>([])
        let loaded = try await Model.load(options: options) { done, total in
            reports.with { $0.append((done, total)) }
            return true
        }
        XCTAssertEqual(try loaded.name, "embedded")
        let all = reports.with { $0 }
        XCTAssertGreaterThan(all.count, 4)
        XCTAssertEqual(all.last?.0, all.last?.1)
        do {
            _ = try await Model.load(options: options) { _, total in total == 0 }
            XCTFail("no error")
        } catch let error as AkunuError {
            XCTAssertEqual(error.status, -15)
        }
    }

    func testTheLogHasWhatTheLibrarySays() throws {
        let lines = Shared<[(LogLevel, String)]>([])
        try setLog(.info) { level, line in lines.with { $0.append((level, line)) } }
        _ = try model()
        try setLog(.info, nil)
        _ = try model()
        let found = lines.with { $0 }.filter { $0.1.contains("loaded embedded") }
        XCTAssertEqual(found.count, 1)
        XCTAssertEqual(found.first?.0, .info)
    }

    func testHandlesAreFreed() throws {
        // Without the free of the first ones, the fifth would have no place.
        let model = try model(sessions: 4)
        for _ in 0..<20 { _ = try Session(model) }
        let all = try (0..<4).map { _ in try Session(model) }
        XCTAssertThrowsError(try Session(model))
        XCTAssertEqual(all.count, 4)
    }

    func testVectorsOfTexts() async throws {
        let embedder = try Embedder(device: "cpu", pooling: .mean)
        let vectors = try await embedder.vectors(["a little fox", "a small fox", "the king of France"])
        XCTAssertEqual(vectors.map(\.count), [Int](repeating: embedder.width, count: 3))
        for vector in vectors {
            XCTAssertEqual(vector.reduce(0) { $0 + $1 * $1 }, 1, accuracy: 1e-4)
        }
        func similarity(_ a: Int, _ b: Int) -> Float { zip(vectors[a], vectors[b]).reduce(0) { $0 + $1.0 * $1.1 } }
        XCTAssertGreaterThan(similarity(0, 1), similarity(0, 2))
        XCTAssertEqual(try embedder.embed(["a little fox"]), [vectors[0]])
        XCTAssertThrowsError(try embedder.embed([""])) { XCTAssertTrue("\($0)".contains("empty")) }
        XCTAssertThrowsError(try Embedder(device: "cpu")) { XCTAssertTrue("\($0)".contains("pooling")) }
    }
}
