import CAkunu
import Foundation

/// An error of the library, with its message.
public struct AkunuError: Error, CustomStringConvertible, Sendable {
    /// An `akunu_status`, such as -9 for a text that is longer than the context.
    public let status: Int32
    public let description: String
}

/// The C type has the name of its enumeration too, so Swift cannot tell them apart.
typealias Status = Int32

/// Throws the error of a call.
func check(_ status: Status) throws {
    if status != 0 {
        throw AkunuError(status: status, description: String(cString: akunu_get_error()))
    }
}

/// Requests the length of a result, then the result.
func filled<T>(
    _ empty: T, _ call: (UnsafeMutablePointer<T>?, Int, UnsafeMutablePointer<Int>) -> Status
) throws -> [T] {
    var length = 0
    try check(call(nil, 0, &length))
    // A text has a null character at its end.
    var items = [T](repeating: empty, count: length + 1)
    let capacity = items.count
    try items.withUnsafeMutableBufferPointer { try check(call($0.baseAddress, capacity, &length)) }
    return Array(items.prefix(length))
}

func filledText(
    _ call: (UnsafeMutablePointer<CChar>?, Int, UnsafeMutablePointer<Int>) -> Status
) throws -> String {
    String(decoding: try filled(CChar(0), call).map { UInt8(bitPattern: $0) }, as: UTF8.self)
}

func text(_ start: UnsafePointer<CChar>, _ length: Int) -> String {
    String(decoding: UnsafeRawBufferPointer(start: start, count: length), as: UTF8.self)
}

/// The size of a struct, for its first field.
func size<T>(_: T.Type) -> UInt32 {
    UInt32(MemoryLayout<T>.size)
}

/// Calls `body` with null-terminated texts.
func withTexts<R>(_ texts: [String], _ body: (UnsafePointer<UnsafePointer<CChar>?>?) throws -> R) rethrows -> R {
    let copies = texts.map { UnsafePointer(strdup($0)) }
    defer { copies.forEach { free(UnsafeMutablePointer(mutating: $0)) } }
    return try copies.withUnsafeBufferPointer { try body($0.baseAddress) }
}

/// As `withCString`, with null for nil.
func withText<R>(_ text: String?, _ body: (UnsafePointer<CChar>?) throws -> R) rethrows -> R {
    guard let text else { return try body(nil) }
    return try text.withCString(body)
}

/// Frees a handle. In a callback of the library a free that would wait is refused, so it is done on another thread.
func release(_ free: @escaping @Sendable () -> Status) {
    if free() == statusBusy {
        Thread.detachNewThread { _ = free() }
    }
}

/// AKUNU_STATUS_BUSY.
let statusBusy: Int32 = -5

/// A value that several threads may read and change.
final class Shared<Value>: @unchecked Sendable {
    private let lock = NSLock()
    private var value: Value

    init(_ value: Value) { self.value = value }

    func with<R>(_ body: (inout Value) throws -> R) rethrows -> R {
        lock.lock()
        defer { lock.unlock() }
        return try body(&value)
    }
}

/// Runs a call that takes long on a thread of its own.
func onThread<R: Sendable>(_ body: @escaping @Sendable () throws -> R) async throws -> R {
    try await withCheckedThrowingContinuation { continuation in
        Thread.detachNewThread { continuation.resume(with: Result(catching: body)) }
    }
}

/// What a call gives to its callback, as a stream. The call runs on a thread of its own; `body` gets a function that
/// adds an item and returns whether to go on. If the consumer stops, `cancel` is called.
func stream<Item: Sendable>(
    cancel: @escaping @Sendable () -> Void,
    _ body: @escaping @Sendable (@escaping (Item) -> Bool) throws -> Void
) -> AsyncThrowingStream<Item, Error> {
    AsyncThrowingStream { continuation in
        continuation.onTermination = { reason in
            if case .cancelled = reason { cancel() }
        }
        Thread.detachNewThread {
            do {
                try body { item in
                    if case .terminated = continuation.yield(item) { return false }
                    return true
                }
                continuation.finish()
            } catch {
                continuation.finish(throwing: error)
            }
        }
    }
}

/// A closure that C calls through a pointer.
final class Listener<Function> {
    let function: Function

    init(_ function: Function) { self.function = function }

    /// Calls `body` with the pointer, which is valid until it returns.
    func withPointer<R>(_ body: (UnsafeMutableRawPointer) throws -> R) rethrows -> R {
        try withExtendedLifetime(self) { try body(Unmanaged.passUnretained(self).toOpaque()) }
    }

    static func at(_ pointer: UnsafeMutableRawPointer?) -> Function {
        Unmanaged<Listener<Function>>.fromOpaque(pointer!).takeUnretainedValue().function
    }
}
