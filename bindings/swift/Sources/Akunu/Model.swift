import CAkunu
import Foundation

/// Called while a model is loaded, with the bytes of weights that are loaded and those of all; both are 0 at first.
/// Returns whether to go on.
public typealias Progress = @Sendable (_ done: UInt64, _ total: UInt64) -> Bool

typealias ProgressListener = Listener<(UInt64, UInt64) -> Bool>

let forwardProgress: akunu_on_progress = { done, total, user in
    ProgressListener.at(user)(done, total) ? AKUNU_CONTINUE : AKUNU_STOP
}

/// A model that is loaded on a device. It is freed with its last reference; sessions and requests hold one.
public final class Model: @unchecked Sendable {
    let handle: OpaquePointer

    /// How a model is loaded.
    public struct Options: Sendable {
        /// "auto", "cpu", "cuda", "metal" or "reference".
        public var device = "auto"
        /// CPU threads; 0: one per physical core.
        public var threads: UInt32 = 0
        /// Context length of each session; 0: the model's own, as far as memory allows.
        public var context: UInt32 = 0
        /// Maximum number of sessions, or of requests that share a pass.
        public var sessions: UInt32 = 1
        /// The model takes requests (`submit`) instead of sessions.
        public var batch = false

        public init() {}
    }

    /// Loads a model: a GGUF or SafeTensors file, or a folder. Without a path: the small model in the library.
    public init(path: String? = nil, options: Options = Options(), progress: Progress? = nil) throws {
        var made: OpaquePointer?
        try Listener<(UInt64, UInt64) -> Bool>({ progress?($0, $1) ?? true }).withPointer { user in
            try options.device.withCString { device in
                var load = akunu_load_options()
                load.size = size(akunu_load_options.self)
                load.device = device
                load.threads = options.threads
                load.context = options.context
                load.sessions = options.sessions
                load.batch = options.batch ? 1 : 0
                load.on_progress = progress == nil ? nil : forwardProgress
                load.progress_user = user
                try withText(path) { try check(akunu_load_model($0, &load, &made)) }
            }
        }
        handle = made!
    }

    /// As `init`, on a thread of its own.
    public static func load(
        path: String? = nil, options: Options = Options(), progress: Progress? = nil
    ) async throws -> Model {
        try await onThread { try Model(path: path, options: options, progress: progress) }
    }

    deinit {
        let handle = Handle(handle)
        release { akunu_free_model(handle.pointer) }
    }

    /// The name of the file or folder, or "embedded".
    public var name: String { get throws { try describe(0) } }
    /// Such as "llama".
    public var architecture: String { get throws { try describe(1) } }
    public var device: String { get throws { try describe(2) } }
    /// Decisions made while loading, one per line.
    public var notes: String { get throws { try describe(3) } }

    private func describe(_ about: UInt32) throws -> String {
        try filledText { akunu_describe(handle, about, $0, $1, $2) }
    }

    public struct Config: Sendable, Equatable {
        /// Every token id is below it.
        public let vocabulary: Int
        public let context: Int
        public let trainedContext: Int
        public let layers: Int
        public let sessions: Int
    }

    public var config: Config {
        get throws {
            var config = akunu_config()
            config.size = size(akunu_config.self)
            try check(akunu_get_config(handle, &config))
            return Config(
                vocabulary: Int(config.vocabulary), context: Int(config.context),
                trainedContext: Int(config.trained_context), layers: Int(config.layers), sessions: Int(config.sessions))
        }
    }

    /// The tokens of a prompt, with the special tokens that the model expects around it.
    public func encode(_ text: String) throws -> [UInt32] {
        try filled(0) { akunu_encode(handle, text, text.utf8.count, UInt32(AKUNU_ENCODE_ADD_SPECIAL), $0, $1, $2) }
    }

    /// The tokens of a conversation, JSON in the form of the OpenAI API, with the prompt for an answer.
    public func encode(conversation: String) throws -> [UInt32] {
        try filled(0) { akunu_encode_chat(handle, conversation, nil, 1, $0, $1, $2) }
    }

    public func decode(_ tokens: [UInt32]) throws -> String {
        try filledText { akunu_decode(handle, tokens, tokens.count, $0, $1, $2) }
    }
}

/// A handle, which is a number to Swift and may be used from any thread.
struct Handle: @unchecked Sendable {
    let pointer: OpaquePointer

    init(_ pointer: OpaquePointer) { self.pointer = pointer }
}
