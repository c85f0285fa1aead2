import CAkunu

/// An error with its message.
public struct AkunuError: Error, CustomStringConvertible {
    public let status: Int32
    public let description: String
}

func check(_ status: akunu_status) throws {
    if status != 0 {
        throw AkunuError(status: Int32(status), description: String(cString: akunu_get_error()))
    }
}

/// Requests the length of a result, then the result.
func filled<T>(_ empty: T, _ call: (UnsafeMutablePointer<T>?, Int, UnsafeMutablePointer<Int>) -> akunu_status) throws -> [T] {
    var length = 0
    try check(call(nil, 0, &length))
    var items = [T](repeating: empty, count: length + 1)
    let capacity = items.count
    try items.withUnsafeMutableBufferPointer { try check(call($0.baseAddress, capacity, &length)) }
    return Array(items.prefix(length))
}

/// A model that is loaded on a device. Its sessions keep it alive.
public final class Model {
    let handle: OpaquePointer

    /// Without a path: the model embedded in the library.
    public init(path: String? = nil, device: String = "auto", context: UInt32 = 0, sessions: UInt32 = 1) throws {
        var made: OpaquePointer?
        try device.withCString { name in
            var options = akunu_load_options()
            options.size = UInt32(MemoryLayout<akunu_load_options>.size)
            options.device = name
            options.context = context
            options.sessions = sessions
            try check(akunu_load_model(path, &options, &made))
        }
        handle = made!
    }

    deinit { _ = akunu_free_model(handle) }

    public func encode(_ text: String) throws -> [UInt32] {
        try filled(0) { akunu_encode(handle, text, text.utf8.count, UInt32(AKUNU_ENCODE_ADD_SPECIAL), $0, $1, $2) }
    }

    /// The tokens of a conversation: JSON in the form of the OpenAI API.
    public func encode(conversation: String) throws -> [UInt32] {
        try filled(0) { akunu_encode_chat(handle, conversation, nil, 1, $0, $1, $2) }
    }

    public func decode(_ tokens: [UInt32]) throws -> String {
        let bytes = try filled(CChar(0)) { akunu_decode(handle, tokens, tokens.count, $0, $1, $2) }
        return String(decoding: bytes.map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }
}

/// A sequence in a model's KV cache.
public final class Session {
    let model: Model
    let handle: OpaquePointer

    public init(_ model: Model) throws {
        var made: OpaquePointer?
        try check(akunu_create_session(model.handle, &made))
        self.model = model
        handle = made!
    }

    deinit { _ = akunu_free_session(handle) }

    public func setTemperature(_ temperature: Float) throws {
        try check(akunu_gpu_temperature_scale(handle, temperature))
    }

    /// Generates the continuation of the prompt; `onPiece` returns whether to continue.
    @discardableResult
    public func generate(_ prompt: [UInt32], maxTokens: UInt32 = 0, onPiece: @escaping (String) -> Bool) throws -> akunu_stats {
        var options = akunu_generate_options()
        options.size = UInt32(MemoryLayout<akunu_generate_options>.size)
        options.max_tokens = maxTokens
        var stats = akunu_stats()
        stats.size = UInt32(MemoryLayout<akunu_stats>.size)
        let listener = Listener(onPiece)
        let user = Unmanaged.passUnretained(listener).toOpaque()
        try withExtendedLifetime(listener) {
            try check(akunu_generate(handle, prompt, prompt.count, &options, forwardPiece, user, &stats))
        }
        return stats
    }
}

private final class Listener {
    let onPiece: (String) -> Bool

    init(_ onPiece: @escaping (String) -> Bool) { self.onPiece = onPiece }
}

private let forwardPiece: akunu_on_piece = { piece, user in
    guard let piece = piece?.pointee, let user = user, let text = piece.text else { return AKUNU_STOP }
    let bytes = UnsafeRawBufferPointer(start: text, count: piece.text_length)
    let listener = Unmanaged<Listener>.fromOpaque(user).takeUnretainedValue()
    return listener.onPiece(String(decoding: bytes, as: UTF8.self)) ? AKUNU_CONTINUE : AKUNU_STOP
}
