import CAkunu
import Foundation

/// How tokens are sampled. The default is greedy: the most probable token.
public struct Sampling: Sendable {
    public var temperature: Float = 0
    public var topK: UInt32 = 0
    public var topP: Float = 1
    public var minP: Float = 0
    public var repeatPenalty: Float = 1
    public var frequencyPenalty: Float = 0
    public var presencePenalty: Float = 0
    public var repeatLastN: UInt32 = 64
    public var seed: UInt64 = 0
    public var topNSigma: Float = 0
    public var typicalP: Float = 1
    public var xtcProbability: Float = 0
    public var xtcThreshold: Float = 0.1
    public var dynatempRange: Float = 0
    public var dynatempExponent: Float = 1
    public var dryMultiplier: Float = 0
    public var dryBase: Float = 1.75
    public var dryAllowedLength: UInt32 = 2
    /// How many of the latest tokens are searched for repetitions; 0: all.
    public var dryLastN: UInt32 = 0
    /// Texts that repetitions do not reach across; nil: line breaks, colons, quotation marks and asterisks.
    public var dryBreakers: [String]?
    /// Mirostat 2's mean surprise in bits; 0: off.
    public var mirostatTau: Float = 0
    public var mirostatEta: Float = 0.1

    public init(temperature: Float = 0, seed: UInt64 = 0) {
        self.temperature = temperature
        self.seed = seed
    }

    var c: akunu_sampling {
        var sampling = akunu_sampling()
        sampling.size = size(akunu_sampling.self)
        sampling.temperature = temperature
        sampling.top_k = topK
        sampling.top_p = topP
        sampling.min_p = minP
        sampling.repeat_penalty = repeatPenalty
        sampling.frequency_penalty = frequencyPenalty
        sampling.presence_penalty = presencePenalty
        sampling.repeat_last_n = repeatLastN
        sampling.seed = seed
        sampling.top_n_sigma = topNSigma
        sampling.typical_p = typicalP
        sampling.xtc_probability = xtcProbability
        sampling.xtc_threshold = xtcThreshold
        sampling.dynatemp_range = dynatempRange
        sampling.dynatemp_exponent = dynatempExponent
        sampling.dry_multiplier = dryMultiplier
        sampling.dry_base = dryBase
        sampling.dry_allowed_length = dryAllowedLength
        sampling.dry_last_n = dryLastN
        sampling.mirostat_tau = mirostatTau
        sampling.mirostat_eta = mirostatEta
        return sampling
    }

    /// Calls `body` with the breakers, null for the default ones, and their number.
    func withBreakers<R>(_ body: (UnsafePointer<UnsafePointer<CChar>?>?, Int) throws -> R) rethrows -> R {
        guard let dryBreakers else { return try body(nil, 0) }
        // The array of none must not be null.
        return try withTexts(dryBreakers + [""]) { try body($0, dryBreakers.count) }
    }
}

/// The format that a text must have.
public enum Format: Sendable {
    case text
    /// A JSON object.
    case jsonObject
    /// JSON that conforms to a JSON Schema.
    case jsonSchema(String)
    /// A text that a regular expression matches as a whole.
    case regex(String)
    /// A text of a grammar, in GBNF or Lark.
    case grammar(String)

    /// An `akunu_answer_format` and its schema.
    var c: (UInt32, String?) {
        switch self {
        case .text: return (0, nil)
        case .jsonObject: return (1, nil)
        case .jsonSchema(let schema): return (2, schema)
        case .regex(let regex): return (4, regex)
        case .grammar(let grammar): return (5, grammar)
        }
    }
}

/// Limits of a generation, and its format.
public struct Limits: Sendable {
    /// 0: no limit but the end of the text and the context.
    public var maxTokens: UInt32 = 0
    /// The text ends before the first of them.
    public var stop: [String] = []
    /// Continue after the tokens that end a text.
    public var ignoreEnd = false
    public var format = Format.text
    /// Log probabilities of each token and of this many of the most probable ones.
    public var topLogprobs: UInt32?

    public init(maxTokens: UInt32 = 0, format: Format = .text) {
        self.maxTokens = maxTokens
        self.format = format
    }

    func withOptions<R>(_ body: (inout akunu_generate_options) throws -> R) rethrows -> R {
        let (format, schema) = self.format.c
        return try withTexts(stop) { stops in
            try withText(schema) { schema in
                var options = akunu_generate_options()
                options.size = size(akunu_generate_options.self)
                options.max_tokens = maxTokens
                options.stop_texts = stops
                options.stop_text_count = UInt32(stop.count)
                options.ignore_end = ignoreEnd ? 1 : 0
                options.format = format
                options.schema = schema
                options.logprobs = topLogprobs == nil ? 0 : 1
                options.top_logprobs = topLogprobs ?? 0
                return try body(&options)
            }
        }
    }
}

public struct Logprob: Sendable, Equatable {
    public let token: UInt32
    public let logprob: Float
}

/// A piece of text, with the tokens since the piece before.
public struct Piece: Sendable {
    public let text: String
    public let tokens: [UInt32]
    /// If requested, for each token: its own, then those of the most probable ones.
    public let logprobs: [[Logprob]]

    init(_ piece: akunu_piece) {
        text = Akunu.text(piece.text, piece.text_length)
        tokens = Array(UnsafeBufferPointer(start: piece.tokens, count: Int(piece.token_count)))
        let count = Int(piece.logprob_count)
        logprobs = (0..<(count == 0 ? 0 : tokens.count)).map { row in
            (0..<count).map { column in
                let found = piece.logprobs[row * count + column]
                return Logprob(token: found.token, logprob: found.logprob)
            }
        }
    }
}

/// Why a generation ended.
public enum Finish: UInt32, Sendable {
    case end = 1, stopText, stopToken, maxTokens, contextFull, cancelled, callback, toolCalls
}

public struct Stats: Sendable {
    public let finish: Finish
    public let promptTokens: Int
    /// Tokens of the prompt that were in the cache already.
    public let reusedTokens: Int
    public let generatedTokens: Int
    public let promptSeconds: Double
    public let generateSeconds: Double

    init?(_ stats: akunu_stats) {
        guard let finish = Finish(rawValue: stats.finish) else { return nil }
        self.finish = finish
        promptTokens = Int(stats.prompt_tokens)
        reusedTokens = Int(stats.reused_tokens)
        generatedTokens = Int(stats.generated_tokens)
        promptSeconds = stats.prompt_seconds
        generateSeconds = stats.generate_seconds
    }

    static var empty: akunu_stats {
        var stats = akunu_stats()
        stats.size = size(akunu_stats.self)
        return stats
    }
}

/// What is generated, as it comes. The generation begins when it is made, and ends if nobody listens any more: when
/// the loop is left, or its task is cancelled.
public struct Generation<Item: Sendable>: AsyncSequence {
    public typealias Element = Item

    let items: AsyncThrowingStream<Item, Error>
    let found: Shared<Stats?>

    public func makeAsyncIterator() -> AsyncThrowingStream<Item, Error>.Iterator {
        items.makeAsyncIterator()
    }

    /// The statistics, once it has ended.
    public var stats: Stats? { found.with { $0 } }
}

extension Generation where Item == Piece {
    /// All text, when it is complete.
    public func text() async throws -> String {
        try await reduce(into: "") { $0 += $1.text }
    }
}
